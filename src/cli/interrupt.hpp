#pragma once
// How a command ends by the interrupt key: at the next place where it looks, or a little later by force.

#include <functional>
#include <thread>

#include "accord/store.hpp"
#include "base/fd.hpp"

namespace accord::cli {

/// Notices the interrupt key (SIGINT) while it lives; the second one ends the process as ever. One at a time.
class InterruptWatch {
 public:
  InterruptWatch();
  ~InterruptWatch();
  InterruptWatch(const InterruptWatch&) = delete;
  bool interrupted() const;
  /// Readable once it was interrupted.
  int descriptor() const;
};

/// Exit code of a command that SIGINT ended.
inline constexpr int kInterrupted = 130;

/// Ends the process with kInterrupted if an interrupt has not ended the command about a second later: a call of gigabytes, or one
/// whose peer has stopped, takes longer. REQUIRES: an InterruptWatch lives, from before it until after it.
class InterruptDeadline {
 public:
  /// `last_words` run before that, on a thread of its own, and on rank 0 alone, which comes first.
  InterruptDeadline(Rank rank, std::function<void()> last_words);
  ~InterruptDeadline();
  InterruptDeadline(const InterruptDeadline&) = delete;

 private:
  void wait() const;

  const Rank rank_;
  const std::function<void()> last_words_;
  const UniqueFd over_;  ///< readable once this is destroyed
  std::thread thread_;
};

}  // namespace accord::cli
