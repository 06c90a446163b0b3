// A pidfd is readable once its process has ended, zombie or not. All links to one process, of however many groups, share one
// pidfd and an epoll around it, found by number in a table of this process; a number may come again for another process, so a
// shared one that has ended is looked up anew.
#include "transport/shm/process_watch.hpp"

#include <poll.h>
#include <sys/epoll.h>
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

bool is_readable(const UniqueFd& fd) {
  pollfd entry = {fd.get(), POLLIN, 0};
  return ::poll(&entry, 1, 0) == 1;
}

}  // namespace

WatchedProcess::WatchedProcess(UniqueFd ended, UniqueFd events)
    : ended_(std::move(ended)), events_(std::move(events)), owner_(::getpid()) {}

// A forked child shares the epoll with its parent: what it removed there would be gone for the parent.
bool WatchedProcess::update() {
  if (has_ended_.load(std::memory_order_acquire)) return true;
  if (::getpid() != owner_ || !is_readable(ended_)) return false;
  ::epoll_ctl(events_.get(), EPOLL_CTL_DEL, ended_.get(), nullptr);
  has_ended_.store(true, std::memory_order_release);
  return true;
}

ProcessWatch watch_process(pid_t process) {
  if (process <= 0) return {};
  if (process == ::getpid()) return {ProcessLife::kOwn, nullptr};
  Watches& watches = per_process<Watches>();
  const std::lock_guard lock(watches.mutex);
  std::erase_if(watches.shared, [](const auto& entry) { return entry.second.expired(); });
  if (const auto known = watches.shared.find(process); known != watches.shared.end()) {
    std::shared_ptr<WatchedProcess> shared = known->second.lock();
    if (shared != nullptr && !is_readable(shared->ended())) return {ProcessLife::kRuns, std::move(shared)};
  }
  UniqueFd ended(static_cast<int>(::syscall(SYS_pidfd_open, process, 0)));  // close-on-exec by definition
  if (!ended.valid()) return {errno == ESRCH ? ProcessLife::kEnded : ProcessLife::kUnknown, nullptr};
  UniqueFd events(::epoll_create1(EPOLL_CLOEXEC));
  epoll_event event = {};
  event.events = EPOLLIN;
  if (!events.valid() || ::epoll_ctl(events.get(), EPOLL_CTL_ADD, ended.get(), &event) != 0) return {};
  auto shared = std::make_shared<WatchedProcess>(std::move(ended), std::move(events));
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
