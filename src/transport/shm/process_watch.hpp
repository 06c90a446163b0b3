#pragma once
// Detects the end of a process, whatever its children still hold open, and however long the kernel takes to tear it
// down.

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

/// How often a waiting thread should call has_ended(), since the descriptor may report the end late.
inline constexpr std::chrono::milliseconds kDeathPollInterval(250);

/// A watch of one other process, shared by all users with a peer in it. Costs a descriptor. Thread-safe.
class WatchedProcess {
 public:
  /// `ended`: a pidfd of the process.
  explicit WatchedProcess(UniqueFd ended);

  /// Becomes readable when the kernel has torn the process down, and stays so.
  const UniqueFd& ended() const { return ended_; }
  /// True soon after the last of its threads stopped, and from then on. Reads /proc at most ten times a second.
  bool has_ended() const;

 private:
  const UniqueFd ended_;
  const std::string first_thread_;  ///< in /proc; empty if it is not visible
  mutable std::atomic<Clock::time_point> last_read_;
  mutable std::atomic<bool> has_stopped_ = false;
};

enum class ProcessLife : std::uint8_t {
  kUnknown,  ///< it cannot be watched from here
  kOwn,      ///< this process: nobody in it can observe its end
  kRuns,
  kEnded,
};

/// The known state of a process. Copies share the watch, and so do all watches of one process.
struct ProcessWatch {
  ProcessLife life = ProcessLife::kUnknown;      ///< when the watch began
  std::shared_ptr<WatchedProcess> process = {};  ///< null unless kRuns

  /// True if no other sign of its end is needed.
  bool suffices() const { return life == ProcessLife::kOwn || process != nullptr; }
};

/// Watches `process`. The result is kUnknown for 0, if the kernel or a sandbox offers no pidfd, and if descriptors
/// have run out.
ProcessWatch watch_process(pid_t process);
/// ended() of the watched processes that have ended. The descriptors may not be readable yet.
std::vector<int> ended_processes();
/// Number of processes under watch.
std::size_t watched_processes();

}  // namespace accord::transport
