#pragma once
// The process's progress thread: it drives started works and notices peers that die.

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "accord/status.hpp"
#include "base/fd.hpp"
#include "comm/channel/channel.hpp"

namespace accord::comm {

/// Lives as long as the process. Sleeps while nothing is pending and no peer has news, except to check four times a
/// second for peers that have ended. A forked child starts without one and creates its own.
class ProgressThread {
 public:
  /// Creates the thread on first use. A call after one that failed tries again.
  static Result<ProgressThread*> start();
  /// REQUIRES: start() has succeeded in this process, as it has for every group that was created here.
  static ProgressThread& instance();
  /// Counts the forks of this process since the first group. A group of an older generation belongs to the parent.
  static int fork_generation() { return forks_.load(std::memory_order_relaxed); }

  /// Hands over a channel with a non-empty queue. `handover`: the number for Channel::drive().
  void activate(std::shared_ptr<Group> group, Channel& channel, std::uint64_t handover);
  /// Wakes the thread after another one has stopped driving a channel.
  void recheck();
  /// Watches the liveness of `group`'s peers until forget().
  Status watch(const std::shared_ptr<Group>& group);
  void forget(Group& group);

 private:
  struct Active {
    std::shared_ptr<Group> group;
    Channel* channel;
    std::uint64_t handover;
  };
  struct Watcher {
    std::weak_ptr<Group> group;
    Group* address;
    Rank peer;
  };

  static Result<std::unique_ptr<ProgressThread>> make();
  static void after_fork_in_child();
  ProgressThread(UniqueFd epoll, UniqueFd wakeup);
  void loop();
  void poll_peers(int timeout_milliseconds);
  /// Notifies the groups that watch liveness descriptor `fd`.
  void notify_watchers(int fd);
  /// poll_peers(), after asleep_ has been set.
  void sleep(int timeout_milliseconds);
  static WaitPolicy policy_of(const std::vector<Active>& active);
  void wake();
  /// Ends the watch for these watchers of `fd`. REQUIRES: mutex_ is held.
  template <typename Which>
  void drop(int fd, Which which);

  static inline std::atomic<int> forks_ = 0;

  UniqueFd epoll_;
  UniqueFd wakeup_;
  std::chrono::steady_clock::time_point last_end_check_ = {};
  std::mutex mutex_;
  std::vector<Active> arrived_;                  // guarded by mutex_
  std::atomic<bool> asleep_ = false;             // set with mutex_ held
  std::map<int, std::vector<Watcher>> watched_;  // by liveness descriptor; guarded by mutex_
};

}  // namespace accord::comm
