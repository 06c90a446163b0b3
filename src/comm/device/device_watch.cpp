#include "comm/device/device_watch.hpp"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <system_error>
#include <utility>

#include "base/blocked_signals.hpp"
#include "comm/group.hpp"
#include "comm/progress.hpp"

namespace accord::comm {
namespace {

constexpr std::chrono::milliseconds kFast(1);
constexpr std::chrono::milliseconds kSlow(50);
constexpr std::chrono::seconds kExitTimeout(5);

DeviceWatch* the_watch = nullptr;  // never deleted; a forked child creates its own
int generation = -1;               // of forks, in which it was created

template <typename Work>
std::thread start_thread(const char* name, Work work) {
  const BlockedSignals blocked;
  return std::thread([name, work]() mutable {
    pthread_setname_np(pthread_self(), name);
    work();
  });
}

}  // namespace

DeviceWatch& DeviceWatch::instance() {
  static std::mutex making;
  const std::lock_guard lock(making);
  if (generation != ProgressThread::fork_generation()) {  // a forked child has no threads yet
    the_watch = new DeviceWatch;
    generation = ProgressThread::fork_generation();
    // Runs before the handlers that CUDA and NCCL have registered earlier.
    static const int registered = std::atexit([] {
      if (generation == ProgressThread::fork_generation()) the_watch->end();
    });
    (void)registered;
  }
  return *the_watch;
}

DeviceWatch::DeviceWatch() {
  std::thread ends = start_thread("accord-device", [this] { end_works(); });
  ending_thread_ = ends.get_id();
  ends.detach();
  start_thread("accord-watch", [this] { look_for_failures(); }).detach();
}

void DeviceWatch::end() {
  std::unique_lock lock(mutex_);
  ends_ = true;
  arrived_.notify_all();
  // A callback of a work may have called exit().
  const bool is_here = std::this_thread::get_id() == ending_thread_;
  const auto have_ended = [&] {
    return (has_ended_ || is_here) &&
           std::all_of(aborts_.begin(), aborts_.end(), [](const Abort& one) { return one.has_ended; });
  };
  (void)left_.wait_for(lock, kExitTimeout, have_ended);
  // The end of a thread calls into CUDA as well.
  for (Abort& one : aborts_)
    if (one.has_ended && one.thread.joinable()) one.thread.join();
}

void DeviceWatch::watch(std::shared_ptr<Group> group, DeviceChannel& channel) {
  const std::lock_guard lock(mutex_);
  if (!is_watched(channel)) watched_.push_back({std::move(group), &channel});
  ++arrivals_;
  if (resting_ > 0) arrived_.notify_all();
}

bool DeviceWatch::is_watched(const DeviceChannel& channel) const {
  return std::ranges::any_of(watched_, [&](const Watched& one) { return one.channel == &channel; });
}

template <typename IsWoken>
void DeviceWatch::rest(std::unique_lock<std::mutex>& lock, bool is_fast, IsWoken is_woken) {
  if (is_fast) {
    lock.unlock();
    std::this_thread::sleep_for(kFast);
    lock.lock();
    return;
  }
  ++resting_;
  if (watched_.empty()) {
    arrived_.wait(lock, is_woken);
  } else {
    (void)arrived_.wait_for(lock, kSlow, is_woken);
  }
  --resting_;
}

void DeviceWatch::end_works() {
  std::unique_lock lock(mutex_);
  while (!ends_) {
    const std::uint64_t seen = arrivals_;
    std::vector<Watched> now = watched_;
    std::vector<std::shared_ptr<Group>> finished = std::exchange(finished_, {});
    std::list<Abort> aborted;
    for (auto one = aborts_.begin(); one != aborts_.end();) {
      const auto next = std::next(one);
      if (one->has_ended) aborted.splice(aborted.end(), aborts_, one);
      one = next;
    }
    lock.unlock();
    for (Abort& one : aborted) one.thread.join();
    for (const Watched& one : now) (void)one.channel->poll();
    lock.lock();
    bool is_fast = false;
    for (const Watched& one : now) {
      // Calls that came after the look keep the channel here.
      const DeviceChannel::Pace pace = one.channel->pace();
      is_fast |= pace == DeviceChannel::Pace::kFast;
      if (pace == DeviceChannel::Pace::kDone)
        std::erase_if(watched_, [&](const Watched& other) { return other.channel == one.channel; });
    }
    lock.unlock();
    finished.clear();  // may close groups
    now.clear();
    lock.lock();
    rest(lock, is_fast, [&] { return ends_ || arrivals_ != seen || !finished_.empty(); });
  }
  has_ended_ = true;
  left_.notify_all();
  lock.unlock();
  while (true) ::pause();  // the end of a thread calls into CUDA as well
}

void DeviceWatch::look_for_failures() {
  std::unique_lock lock(mutex_);
  while (!ends_) {
    const std::uint64_t seen = arrivals_;
    std::vector<Watched> now = watched_;
    lock.unlock();
    bool is_fast = false;
    std::vector<const Watched*> failed;
    for (const Watched& one : now) {
      if (one.channel->look_for_failure()) failed.push_back(&one);
      is_fast |= one.channel->pace() == DeviceChannel::Pace::kFast;
    }
    lock.lock();
    for (const Watched* const one : failed) abort(*one);
    for (Watched& one : now)
      if (!is_watched(*one.channel)) finish(std::move(one.group));
    now.clear();  // none is the last reference
    rest(lock, is_fast, [&] { return ends_ || arrivals_ != seen; });
  }
}

void DeviceWatch::finish(std::shared_ptr<Group> group) {
  finished_.push_back(std::move(group));
  if (resting_ > 0) arrived_.notify_all();
}

void DeviceWatch::abort(const Watched& failed) {
  if (ends_) return;
  Abort& one = aborts_.emplace_back();
  auto work = [this, &one, failed = failed]() mutable {
    failed.channel->abort_backends();
    const std::lock_guard lock(mutex_);
    one.has_ended = true;
    finish(std::move(failed.group));
    left_.notify_all();
  };
  try {
    one.thread = start_thread("accord-abort", work);
  } catch (const std::system_error&) {  // the other thread aborts as well, if the device does not hold it up
    aborts_.pop_back();
  }
}

}  // namespace accord::comm
