// A pidfd is readable once its process has ended, zombie or not. All links to one process, of however many groups,
// share one pidfd, found by process number in a table of this process. A number may be reused for another process, so
// a shared pidfd whose process has ended is looked up anew. It stays readable, so that every group notices the end,
// including a group under construction.
//
// It becomes readable late: after a killed process's memory is freed (a second for some gigabytes), its GPUs are
// released and a core file is written. /proc shows at once that its threads have stopped.
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
#include <string_view>
#include <utility>

#include "base/fd.hpp"
#include "transport/per_process.hpp"

namespace accord::transport {
namespace {

struct Watches {
  std::mutex mutex;
  std::map<pid_t, std::weak_ptr<WatchedProcess>> shared;
};

constexpr std::chrono::milliseconds kProcReadInterval(100);
/// Flags in a thread's stat: it exits, waits until a core file is written, or writes it.
constexpr unsigned kStopped = 0x4 | 0x8 | 0x200;

/// The first thread of a pidfd's process in /proc, by its number in the PID namespace shown there, which may differ
/// from this process's namespace. Empty if it is not visible.
std::string first_thread_of(int pidfd) {
  constexpr std::string_view kNumber = "\nPid:\t";
  const Result<std::string> info = read_file(fmt::format("/proc/self/fdinfo/{}", pidfd));
  const std::size_t at = info.ok() ? info->find(kNumber) : std::string::npos;
  int process = 0;
  if (at != std::string::npos)
    std::from_chars(info->data() + at + kNumber.size(), info->data() + info->size(), process);
  return process > 0 ? fmt::format("/proc/{0}/task/{0}", process) : "";
}

std::vector<std::string> threads_of(const std::string& folder) {
  std::vector<std::string> threads;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error))
    threads.push_back(entry->path().string());
  std::ranges::sort(threads);
  return error ? std::vector<std::string>() : threads;
}

bool runs_no_more(const std::string& thread) {
  const Result<std::string> stat = read_file(thread + "/stat");
  if (!stat.ok()) return false;
  // "PID (NAME) STATE PPID PGRP SESSION TTY TPGID FLAGS ...", where NAME may contain anything.
  std::size_t at = stat->rfind(')');
  for (int field = 0; field < 7 && at != std::string::npos; ++field) at = stat->find(' ', at + 1);
  unsigned flags = 0;
  if (at == std::string::npos) return false;
  std::from_chars(stat->data() + at + 1, stat->data() + stat->size(), flags);
  return (flags & kStopped) != 0;
}

/// True if no thread of the process runs any more, including threads started in the meantime.
bool is_torn_down(const std::string& first_thread) {
  if (!runs_no_more(first_thread)) return false;
  const std::string folder = std::filesystem::path(first_thread).parent_path();
  const std::vector<std::string> threads = threads_of(folder);
  return !threads.empty() && std::ranges::all_of(threads, runs_no_more) && threads_of(folder) == threads;
}

}  // namespace

WatchedProcess::WatchedProcess(UniqueFd ended)
    : ended_(std::move(ended)), first_thread_(first_thread_of(ended_.get())), last_read_(Clock::now()) {}

bool WatchedProcess::has_ended() const {
  pollfd entry = {ended_.get(), POLLIN, 0};
  if (has_stopped_ || ::poll(&entry, 1, 0) == 1) return true;
  const Clock::time_point now = Clock::now();
  Clock::time_point last_read = last_read_;
  if (first_thread_.empty() || now - last_read < kProcReadInterval ||
      !last_read_.compare_exchange_strong(last_read, now))
    return false;
  if (is_torn_down(first_thread_)) has_stopped_ = true;
  return has_stopped_;
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
