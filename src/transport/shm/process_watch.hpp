#pragma once
// Seeing a process end, whatever its children still hold open, and however long the kernel takes to take it down.

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.hpp"
#include "base/fd.hpp"

namespace accord::transport {

/// How often a thread that waits asks has_ended(), as the descriptor may be late to tell it.
inline constexpr std::chrono::milliseconds kBetweenQuestions(250);

/// One other process under watch, for all who have a peer in it. Costs a descriptor. Thread-safe.
class WatchedProcess {
 public:
  /// `ended`: a pidfd of the process.
  explicit WatchedProcess(UniqueFd ended);

  /// Becomes readable when the kernel has taken the process down, and stays so.
  const UniqueFd& ended() const { return ended_; }
  /// True soon after the last of its threads ran its program, and from then on. Looks at /proc ten times a second at
  /// most.
  bool has_ended() const;

 private:
  const UniqueFd ended_;
  const std::string first_thread_;  ///< in /proc; empty where it is not to be seen
  mutable std::atomic<Clock::time_point> looked_;
  mutable std::atomic<bool> runs_no_more_ = false;
};

enum class ProcessLife : std::uint8_t {
  kUnknown,  ///< it cannot be watched from here
  kOwn,      ///< this process: nobody in it sees it end
  kRuns,
  kEnded,
};

/// What is known of a process. Copies share the watch, and so do all watches of one process.
struct ProcessWatch {
  ProcessLife life = ProcessLife::kUnknown;      ///< when the watch began
  std::shared_ptr<WatchedProcess> process = {};  ///< null unless kRuns

  /// True if no other sign of its end is needed.
  bool suffices() const { return life == ProcessLife::kOwn || process != nullptr; }
};

/// Watches `process`. kUnknown for 0, where the kernel or a sandbox has no pidfd, and where descriptors have run out.
ProcessWatch watch_process(pid_t process);
/// ended() of those under watch that have ended. It may not be readable yet.
std::vector<int> ended_processes();
/// How many processes are under watch.
std::size_t watched_processes();

}  // namespace accord::transport
