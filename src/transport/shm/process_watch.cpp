// A pidfd is readable once its process has ended, zombie or not. All links to one process share one pidfd, found by
// number in a table of this process; a number may come again for another process, so a shared one that has ended is
// looked up anew.
#include "transport/shm/process_watch.hpp"

#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <map>
#include <mutex>

#include "transport/per_process.hpp"

namespace accord::transport {
namespace {

struct Watches {
  std::mutex mutex;
  std::map<pid_t, std::weak_ptr<const UniqueFd>> shared;
};

bool is_readable(const UniqueFd& fd) {
  pollfd entry = {fd.get(), POLLIN, 0};
  return ::poll(&entry, 1, 0) == 1;
}

}  // namespace

ProcessWatch watch_process(pid_t process) {
  if (process <= 0 || process == ::getpid()) return {};
  Watches& watches = per_process<Watches>();
  const std::lock_guard lock(watches.mutex);
  std::erase_if(watches.shared, [](const auto& entry) { return entry.second.expired(); });
  if (const auto known = watches.shared.find(process); known != watches.shared.end()) {
    std::shared_ptr<const UniqueFd> ended = known->second.lock();
    if (ended != nullptr && !is_readable(*ended)) return {ProcessLife::kRuns, std::move(ended)};
  }
  const int fd = static_cast<int>(::syscall(SYS_pidfd_open, process, 0));  // close-on-exec by definition
  if (fd < 0) return {errno == ESRCH ? ProcessLife::kEnded : ProcessLife::kUnknown, nullptr};
  auto ended = std::make_shared<const UniqueFd>(fd);
  watches.shared[process] = ended;
  return {ProcessLife::kRuns, std::move(ended)};
}

}  // namespace accord::transport
