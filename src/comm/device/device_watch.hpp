#pragma once
// The process's thread that watches over calls in streams.

#include <condition_variable>
#include <memory>
#include <mutex>
#include <vector>

#include "comm/device/device_channel.hpp"

namespace accord::comm {

/// Lives as long as the process; asleep while nothing is in streams.
class DeviceWatch {
 public:
  static DeviceWatch& instance();

  /// Looks at `channel` of `group` every millisecond until nothing of it is under way.
  void watch(std::shared_ptr<Group> group, DeviceChannel& channel);

 private:
  DeviceWatch();
  void loop();

  struct Watched {
    std::shared_ptr<Group> group;
    DeviceChannel* channel;
  };
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::vector<Watched> watched_;  // guarded by mutex_
};

}  // namespace accord::comm
