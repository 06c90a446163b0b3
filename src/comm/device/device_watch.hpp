#pragma once
// The threads of the process that watch calls in streams.

#include <condition_variable>
#include <list>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "comm/device/device_channel.hpp"

namespace accord::comm {

/// One thread ends the works of calls that are over, by asking the device. Another one looks for failures, and never
/// calls the device: CUDA holds up the calls of all threads while one copies to pageable memory behind a kernel, and
/// that kernel may wait for a rank that is gone. What ends the calls of a failed group in NCCL runs in a thread of its
/// own. They sleep while nothing is in streams.
///
/// exit() waits until no thread is in a call of CUDA or NCCL, since these shut down next: a group that a thread is
/// closing or giving up has finished with them by then.
class DeviceWatch {
 public:
  static DeviceWatch& instance();

  /// Looks at `channel` of `group` every millisecond until it has no calls in streams.
  void watch(std::shared_ptr<Group> group, DeviceChannel& channel);

 private:
  struct Watched {
    std::shared_ptr<Group> group;
    DeviceChannel* channel;
  };
  struct Abort {
    std::thread thread;
    bool has_ended = false;
  };

  DeviceWatch();
  void end_works();
  void look_for_failures();
  /// Aborts the calls of a failed group in a thread of its own. REQUIRES: mutex_ is held.
  void abort(const Watched& failed);
  /// Hands over a reference that may be the last one. REQUIRES: mutex_ is held.
  void finish(std::shared_ptr<Group> group);
  bool is_watched(const DeviceChannel& channel) const;
  /// Sleeps until the next look at the channels. REQUIRES: `lock` is held.
  template <typename IsWoken>
  void rest(std::unique_lock<std::mutex>& lock, bool is_fast, IsWoken is_woken);
  /// Waits until the threads have stopped calling the device, for a few seconds at most.
  void end();

  std::mutex mutex_;
  std::condition_variable arrived_;  ///< at watch(), finish() and end()
  std::condition_variable left_;     ///< at the end of a thread
  std::thread::id ending_thread_;    ///< the thread of end_works()
  // Guarded by mutex_:
  std::vector<Watched> watched_;
  std::list<Abort> aborts_;
  /// For the thread of end_works(): to drop the last reference to a group calls the device.
  std::vector<std::shared_ptr<Group>> finished_;
  std::uint64_t arrivals_ = 0;
  int resting_ = 0;  ///< threads that sleep for long
  bool ends_ = false;
  bool has_ended_ = false;  ///< end_works()
};

}  // namespace accord::comm
