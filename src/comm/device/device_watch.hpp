#pragma once
// The process's thread that watches over calls in streams.

#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "comm/device/device_channel.hpp"

namespace accord::comm {

/// Asleep while nothing is in streams. exit() waits until it stands in no call of CUDA or NCCL, which are taken down
/// then: a group that this thread closes, or gives up, is through with them.
class DeviceWatch {
 public:
  static DeviceWatch& instance();

  /// Looks at `channel` of `group` every millisecond until nothing of it is under way.
  void watch(std::shared_ptr<Group> group, DeviceChannel& channel);

 private:
  DeviceWatch();
  void loop();
  /// Waits until the thread looks at nothing any more, for some seconds at most.
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
