// A pidfd is readable once its process has ended, zombie or not. All links to one process, of however many groups, share one, found
// by number in a table of this process; a number may come again for another process, so a shared one that has ended is looked up
// anew. It stays readable, so that each of the groups hears of the end, also one that was being made meanwhile.
#include "transport/shm/process_watch.hpp"

#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <map>
#include <mutex>
#include <utility>

#include "transport/per_process.hpp"

namespace accord::transport {
namespace {

struct Watches {
  std::mutex mutex;
  std::map<pid_t, std::weak_ptr<WatchedProcess>> shared;
};

}  // namespace

bool WatchedProcess::has_ended() const {
  pollfd entry = {ended_.get(), POLLIN, 0};
  return ::poll(&entry, 1, 0) == 1;
}

ProcessWatch watch_process(pid_t process) {
  if (process <= 0) return {};
  if (process == ::getpid()) return {ProcessLife::kOwn, nullptr};
  Watches& watches = per_process<Watches>();
  const std::lock_guard lock(watches.mutex);
  std::erase_if(watches.shared, [](const auto& entry) { return entry.second.expired(); });
  if (const auto known = watches.shared.find(process); known != watches.shared.end()) {
    std::shared_ptr<WatchedProcess> shared = known->second.lock();
    if (shared != nullptr && !shared->has_ended()) return {ProcessLife::kRuns, std::move(shared)};
  }
  UniqueFd ended(static_cast<int>(::syscall(SYS_pidfd_open, process, 0)));  // close-on-exec by definition
  if (!ended.valid()) return {errno == ESRCH ? ProcessLife::kEnded : ProcessLife::kUnknown, nullptr};
  auto shared = std::make_shared<WatchedProcess>(std::move(ended));
  watches.shared[process] = shared;
  return {ProcessLife::kRuns, std::move(shared)};
}

std::size_t watched_processes() {
  Watches& watches = per_process<Watches>();
  const std::lock_guard lock(watches.mutex);
  std::erase_if(watches.shared, [](const auto& entry) { return entry.second.expired(); });
  return watches.shared.size();
}

}  // namespace accord::transport
