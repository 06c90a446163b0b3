#include "comm/device/device_watch.hpp"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "base/blocked_signals.hpp"
#include "comm/group.hpp"
#include "comm/progress.hpp"

namespace accord::comm {
namespace {

constexpr std::chrono::milliseconds kPollInterval(1);
constexpr std::chrono::seconds kExitTimeout(5);

DeviceWatch* the_watch = nullptr;  // never deleted; a forked child creates its own
int generation = -1;               // of forks, in which it was created

}  // namespace

DeviceWatch& DeviceWatch::instance() {
  static std::mutex making;
  const std::lock_guard lock(making);
  if (generation != ProgressThread::fork_generation()) {  // a forked child has no thread yet
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
  const BlockedSignals blocked;
  std::thread thread([this] {
    pthread_setname_np(pthread_self(), "accord-device");
    loop();
  });
  thread_ = thread.get_id();
  thread.detach();
}

void DeviceWatch::end() {
  if (std::this_thread::get_id() == thread_) return;  // a callback of a work called exit()
  std::unique_lock lock(mutex_);
  ends_ = true;
  arrived_.notify_one();
  (void)left_.wait_for(lock, kExitTimeout, [this] { return has_ended_; });
}

void DeviceWatch::watch(std::shared_ptr<Group> group, DeviceChannel& channel) {
  const std::lock_guard lock(mutex_);
  const auto is_it = [&](const Watched& one) { return one.channel == &channel; };
  if (std::any_of(watched_.begin(), watched_.end(), is_it)) return;
  watched_.push_back({std::move(group), &channel});
  arrived_.notify_one();
}

void DeviceWatch::loop() {
  std::unique_lock lock(mutex_);
  while (true) {
    arrived_.wait(lock, [this] { return ends_ || !watched_.empty(); });
    if (ends_) break;
    std::vector<Watched> now = watched_;
    lock.unlock();
    for (Watched& one : now)
      if (one.channel->poll()) one.channel = nullptr;  // keep it
    lock.lock();
    // Calls that came after a look have put the channel there again.
    std::vector<std::shared_ptr<Group>> dropped;
    for (Watched& one : now) {
      if (one.channel == nullptr) continue;
      const auto place = std::find_if(watched_.begin(), watched_.end(),
                                      [&](const Watched& other) { return other.channel == one.channel; });
      dropped.push_back(std::move(place->group));
      watched_.erase(place);
      if (one.channel->is_busy()) watched_.push_back({dropped.back(), one.channel});
    }
    lock.unlock();
    dropped.clear();  // may close groups
    now.clear();
    std::this_thread::sleep_for(kPollInterval);
    lock.lock();
  }
  has_ended_ = true;
  left_.notify_all();
  lock.unlock();
  while (true) ::pause();  // the end of a thread calls into CUDA as well
}

}  // namespace accord::comm
