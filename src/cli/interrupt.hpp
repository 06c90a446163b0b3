#pragma once
// How the interrupt key ends a command: at the next point where the command checks, or by force a little later.

#include <functional>
#include <thread>

#include "accord/store.hpp"
#include "base/fd.hpp"

namespace accord::cli {

/// Detects the interrupt key (SIGINT) while it exists. The second interrupt ends the process as usual. One instance
/// at a time.
class InterruptWatch {
 public:
  InterruptWatch();
  ~InterruptWatch();
  InterruptWatch(const InterruptWatch&) = delete;
  bool interrupted() const;
  /// Becomes readable after an interrupt.
  int descriptor() const;
};

/// Exit code of a command that SIGINT ended.
inline constexpr int kInterrupted = 130;

/// Ends the process with kInterrupted if an interrupt has not ended the command about a second later (0.7 s on rank
/// 0, 2.5 s on the others). That happens in a call of gigabytes, or if a peer has stopped. REQUIRES: an
/// InterruptWatch that is created before this object and destroyed after it.
class InterruptDeadline {
 public:
  /// `on_forced_end` runs before the process ends, on a thread of its own, and only on rank 0, which ends first.
  InterruptDeadline(Rank rank, std::function<void()> on_forced_end);
  ~InterruptDeadline();
  InterruptDeadline(const InterruptDeadline&) = delete;

 private:
  void wait() const;

  const Rank rank_;
  const std::function<void()> on_forced_end_;
  const UniqueFd over_;  ///< readable once the destructor runs
  std::thread thread_;
};

}  // namespace accord::cli
