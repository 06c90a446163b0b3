#pragma once
// The process's progress thread: it drives started works and hears of peers that die.

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "accord/status.hpp"
#include "base/fd.hpp"
#include "comm/channel.hpp"

namespace accord::comm {

/// Lives as long as the process; asleep while nothing is pending and no peer has news, but for a look four times a
/// second for peers that have ended. A forked child begins without one and makes its own.
class ProgressThread {
 public:
  /// Made on first use; a call after one that failed tries again.
  static Result<ProgressThread*> start();
  /// REQUIRES: start() gave one in this process, as for every group that was made here.
  static ProgressThread& instance();
  /// How often this process has been forked off since the first group; a group of an older generation is the parent's.
  static int fork_generation() { return forks_.load(std::memory_order_relaxed); }

  /// Hands over a channel whose queue is not empty; `handover`: the number that Channel::drive() is given.
  void activate(std::shared_ptr<Group> group, Channel& channel, std::uint64_t handover);
  /// A channel that another thread drove is left to this one.
  void look_again();
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
  void look_at_peers(int timeout_milliseconds);
  /// Tells the groups that watch liveness descriptor `fd`.
  void tell_of_news(int fd);
  /// look_at_peers() of a thread that has told that it is asleep.
  void sleep(int timeout_milliseconds);
  static WaitPolicy policy_of(const std::vector<Active>& active);
  void wake();
  /// Ends the watch of those watchers of `fd`. REQUIRES: mutex_ is held.
  template <typename Which>
  void drop(int fd, Which which);

  static inline std::atomic<int> forks_ = 0;

  UniqueFd epoll_;
  UniqueFd wakeup_;
  std::chrono::steady_clock::time_point looked_for_ends_ = {};
  std::mutex mutex_;
  std::vector<Active> arrived_;                  // guarded by mutex_
  std::atomic<bool> asleep_ = false;             // set with mutex_ held
  std::map<int, std::vector<Watcher>> watched_;  // by liveness descriptor; guarded by mutex_
};

}  // namespace accord::comm
