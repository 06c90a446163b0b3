#pragma once
// The thread of the process that watches calls in streams.

#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "comm/device/device_channel.hpp"

namespace accord::comm {

/// Sleeps while nothing is in streams. exit() waits until the thread is in no call of CUDA or NCCL, since these shut
/// down next: a group that the thread is closing or giving up has finished with them by then.
class DeviceWatch {
 public:
  static DeviceWatch& instance();

  /// Looks at `channel` of `group` every millisecond until it has no calls in streams.
  void watch(std::shared_ptr<Group> group, DeviceChannel& channel);

 private:
  DeviceWatch();
  void loop();
  /// Waits until the thread has stopped looking, for a few seconds at most.
  void end();

  struct Watched {
    std::shared_ptr<Group> group;
    DeviceChannel* channel;
  };
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::condition_variable left_;
  std::thread::id thread_;
  // Guarded by mutex_:
  std::vector<Watched> watched_;
  bool ends_ = false;
  bool has_ended_ = false;
};

}  // namespace accord::comm
