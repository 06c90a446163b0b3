// A pidfd is readable once its process has ended, zombie or not. All links to one process, of however many groups, share one, found
// by number in a table of this process; a number may come again for another process, so a shared one that has ended is looked up
// anew. It stays readable, so that each of the groups hears of the end, also one that was being made meanwhile.
//
// It becomes readable late: after a killed process's memory is freed, a second for some gigabytes, its GPUs are let go,
// and a core is written. That its threads run no more is in /proc at once.
#include "transport/shm/process_watch.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <filesystem>
#include <map>
#include <mutex>
#include <utility>

#include "base/fd.hpp"
#include "transport/per_process.hpp"

namespace accord::transport {
namespace {

struct Watches {
  std::mutex mutex;
  std::map<pid_t, std::weak_ptr<WatchedProcess>> shared;
};

/// Of the flags in /proc/PID/stat: a thread that exits, that waits until a core is written, or that writes it.
constexpr unsigned kRunsNoMore = 0x4 | 0x8 | 0x200;

bool runs_no_more(const std::string& folder) {
  const Result<std::string> stat = read_file(folder + "/stat");
  if (!stat.ok()) return false;
  // "PID (NAME) STATE PPID PGRP SESSION TTY TPGID FLAGS ...", where NAME may be anything.
  std::size_t at = stat->rfind(')');
  for (int field = 0; field < 7 && at != std::string::npos; ++field) at = stat->find(' ', at + 1);
  unsigned flags = 0;
  if (at == std::string::npos) return false;
  std::from_chars(stat->data() + at + 1, stat->data() + stat->size(), flags);
  return (flags & kRunsNoMore) != 0;
}

/// Whether all of its threads run no more. False where /proc does not show it.
bool is_taken_down(pid_t process) {
  const std::string folder = fmt::format("/proc/{}", process);
  if (!runs_no_more(folder)) return false;  // the first thread
  std::error_code error;
  const std::filesystem::directory_iterator threads(folder + "/task", error);
  return !error && std::all_of(begin(threads), end(threads),
                               [](const auto& thread) { return runs_no_more(thread.path().string()); });
}

}  // namespace

bool WatchedProcess::has_ended() const {
  pollfd entry = {ended_.get(), POLLIN, 0};
  return ::poll(&entry, 1, 0) == 1 || is_taken_down(process_);
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
  auto shared = std::make_shared<WatchedProcess>(process, std::move(ended));
  if (shared->has_ended()) return {ProcessLife::kEnded, nullptr};
  watches.shared[process] = shared;
  return {ProcessLife::kRuns, std::move(shared)};
}

std::vector<int> ended_processes() {
  Watches& watches = per_process<Watches>();
  const std::lock_guard lock(watches.mutex);
  std::vector<int> ended;
  for (const auto& [process, watched] : watches.shared)
    if (const auto shared = watched.lock(); shared != nullptr && shared->has_ended())
      ended.push_back(shared->ended().get());
  return ended;
}

std::size_t watched_processes() {
  Watches& watches = per_process<Watches>();
  const std::lock_guard lock(watches.mutex);
  std::erase_if(watches.shared, [](const auto& entry) { return entry.second.expired(); });
  return watches.shared.size();
}

}  // namespace accord::transport
