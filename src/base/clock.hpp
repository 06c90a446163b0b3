#pragma once
// Deadlines on the monotonic clock.

#include <algorithm>
#include <chrono>

#include "accord/store.hpp"

namespace accord {

using Clock = std::chrono::steady_clock;

/// A point in time by which an operation must finish.
class Deadline {
 public:
  /// `timeout` from now. A timeout too long to add gives a deadline that never passes.
  static Deadline in(Duration timeout) {
    const auto now = Clock::now();
    return Deadline(timeout > Clock::time_point::max() - now ? Clock::time_point::max() : now + timeout);
  }
  static Deadline never() { return Deadline(Clock::time_point::max()); }

  bool passed() const { return Clock::now() >= at_; }
  /// Time left, never negative.
  Duration remaining() const { return std::max(Duration::zero(), Duration(at_ - Clock::now())); }
  /// Time left in milliseconds for poll(), rounded up, at most an hour.
  int poll_milliseconds() const {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(remaining());
    return static_cast<int>(std::min<std::chrono::milliseconds>(left, std::chrono::hours(1)).count());
  }
  Clock::time_point at() const { return at_; }

 private:
  explicit Deadline(Clock::time_point at) : at_(at) {}
  Clock::time_point at_;
};

}  // namespace accord
