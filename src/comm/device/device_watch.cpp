#include "comm/device/device_watch.hpp"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <thread>

#include "base/blocked_signals.hpp"
#include "comm/group.hpp"

namespace accord::comm {
namespace {

constexpr std::chrono::milliseconds kBetweenLooks(1);

}  // namespace

DeviceWatch& DeviceWatch::instance() {
  static std::mutex making;
  static DeviceWatch* watch = nullptr;  // never deleted: its thread has no end
  static pid_t owner = 0;
  const std::lock_guard lock(making);
  if (owner != ::getpid()) {  // a forked child has no thread yet
    watch = new DeviceWatch;
    owner = ::getpid();
  }
  return *watch;
}

DeviceWatch::DeviceWatch() {
  const BlockedSignals blocked;
  std::thread([this] {
    pthread_setname_np(pthread_self(), "accord-device");
    loop();
  }).detach();
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
    arrived_.wait(lock, [this] { return !watched_.empty(); });
    std::vector<Watched> now = watched_;
    lock.unlock();
    for (Watched& one : now)
      if (one.channel->look()) one.channel = nullptr;  // stays
    lock.lock();
    // Calls that came after a look put the channel there again.
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
    dropped.clear();  // may end groups
    now.clear();
    std::this_thread::sleep_for(kBetweenLooks);
    lock.lock();
  }
}

}  // namespace accord::comm
