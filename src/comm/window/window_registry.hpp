#pragma once
// The windows of a group.

#include <atomic>

namespace accord::comm {

/// Numbers them. Thread-safe.
class WindowRegistry {
 public:
  int next_number() const { return next_.load(std::memory_order_relaxed); }
  /// That number is given, or was tried.
  void made(int number) { next_.store(number + 1, std::memory_order_relaxed); }

 private:
  std::atomic<int> next_ = 0;
};

}  // namespace accord::comm
