#pragma once
// Seeing a process end, whatever its children still hold open.

#include <sys/types.h>

#include <atomic>
#include <memory>

#include "base/fd.hpp"

namespace accord::transport {

/// One other process under watch, for all who have a peer in it. Costs two descriptors. A forked child may ask, and takes no news
/// from its parent.
class WatchedProcess {
 public:
  WatchedProcess(UniqueFd ended, UniqueFd events);

  /// Becomes readable when the process ends, and stays so.
  const UniqueFd& ended() const { return ended_; }
  /// Readable when update() has something to say; silent for ever after.
  int liveness_fd() const { return events_.get(); }
  /// True once the process has ended.
  bool update();

 private:
  const UniqueFd ended_;
  const UniqueFd events_;  // an epoll of it, from which it can be taken
  const pid_t owner_;
  std::atomic<bool> has_ended_ = false;
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
/// How many processes are under watch.
std::size_t watched_processes();

}  // namespace accord::transport
