#pragma once
// The group behind a Communicator: its members, its channels, and its one failure.

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <span>
#include <string>
#include <vector>

#include "accord/communicator.hpp"
#include "base/clock.hpp"
#include "base/wait.hpp"
#include "comm/announcements.hpp"
#include "comm/call.hpp"
#include "comm/channel.hpp"
#include "comm/device/device_channel.hpp"
#include "comm/flight/dump.hpp"
#include "comm/flight/recorder.hpp"
#include "comm/group_options.hpp"
#include "comm/membership.hpp"
#include "comm/progress.hpp"
#include "comm/window/window_registry.hpp"

namespace accord::comm {

/// States: Ready -> Failed, Ready -> Closed, Failed -> Closed. The first failure is kept, told to all peers, and given by
/// every pending and later call.
class Group : public std::enable_shared_from_this<Group> {
 public:
  /// Gives its first handle: the group closes when the last handle goes.
  static Result<std::shared_ptr<Group>> create(Membership membership, GroupOptions options);
  ~Group();
  /// Another handle; null if there is none any more.
  std::shared_ptr<Group> handle() const { return handle_.lock(); }

  Rank rank() const { return members_.rank; }
  int size() const { return members_.topology.size(); }
  const GroupOptions& options() const { return options_; }
  const topology::Topology& topology() const { return members_.topology; }
  /// How its ranks wait for each other.
  WaitPolicy wait_policy() const {
    if (options_.hints.wait) return *options_.hints.wait;
    if (topology().oversubscribed()) return WaitPolicy::kYield;
    return topology().host_count() > 1 ? WaitPolicy::kSpinBriefly : WaitPolicy::kSpin;
  }
  /// How the progress thread does it, which is one more thread beside each rank: where it has no core to itself it must leave that of the
  /// callers to them.
  WaitPolicy wait_policy_of_progress() const {
    const bool has_core = topology().host_count() > 1 || topology().cores_of_host(0) >= 2 * size();
    return has_core || options_.hints.wait ? wait_policy() : WaitPolicy::kYield;
  }
  const Membership& membership() const { return members_; }
  const plan::Selector& selector() const { return members_.selector; }
  const std::vector<std::unique_ptr<transport::Link>>& links() const { return members_.links; }

  flight::Recorder& recorder() const { return *recorder_; }
  WindowRegistry& windows() { return windows_; }
  /// Of receives from any rank: one at a time looks at the ranks, and the next one begins where that ended, so that ranks are served in
  /// turns.
  struct SourceTurns {
    std::mutex mutex;
    std::size_t next = 0;  ///< guarded by mutex
  };
  SourceTurns& source_turns() { return source_turns_; }
  /// Calls on buffers in it are ordinary ones from now on, and this rank keeps peers' memory of it no longer.
  void remove_window(int number);

  /// Runs a call to its end, or starts it.
  Status run(const Call& call, const CallOptions& options);
  /// The same of one on a device's memory, then `norm` of its output, which is this rank's own affair.
  Status run(const Call& call, const device::NormRows& norm, const CallOptions& options);
  Work start(const Call& call, const CallOptions& options);
  /// check_call(); what is refused names the call and the group.
  Status check(const Call& call) const;
  /// Where the call runs; checks it first.
  Result<Channel*> channel_for(const Call& call);
  /// What `use` gives for the operation of a call that was checked; what it refers to lives as long as that.
  template <typename Use>
  auto with_operation(const Call& call, const CallOptions& options, Use use) const {
    if (call.division == Division::kEqual) return use(operation_of(call, options, nullptr));
    const plan::Extent extent = extent_of(call, rank());
    return use(operation_of(call, options, &extent));
  }
  /// A call that was checked.
  std::unique_ptr<const OwnedOperation> operation_of(const Call& call, const CallOptions& options) const;
  /// kWrongState in a process that was forked off the one that made the group.
  Status used_after_fork() const {
    if (!is_inherited()) [[likely]]
      return {};
    return inherited();
  }

  /// Of calls on GPUs.
  DeviceChannel& device_channel() { return *device_channel_; }
  /// A message of the library's own, beside those of the user: to `peer`, who calls receive_aside().
  Status send_aside(std::span<const std::byte> bytes, Rank peer, Deadline deadline);
  Status receive_aside(std::span<std::byte> bytes, Rank peer, Deadline deadline);
  /// Also once it is closed.
  bool has_failed() const {
    const Status first = status();
    return !first.ok() && first.code() != StatusCode::kClosed;
  }

  CommunicatorState state() const { return state_.load(std::memory_order_acquire); }
  Status status() const;
  void abort(std::string_view reason);
  void close();
  /// Keeps the windows for `operation` while it is held: close() waits for it, after it has set the state. kClosed if the group is
  /// closed.
  Result<std::shared_lock<std::shared_mutex>> keep_open(std::string_view operation);
  /// The same, once; kWrongState the second time.
  Result<std::shared_lock<std::shared_mutex>> begin_shrink();
  /// What the members tell each other of the groups that they make. REQUIRES: keep_open() is held.
  Announcements& announcements() { return announcements_; }

  /// False if an operation has to end: failed, closed, or a peer rang the alarm. Two loads. The state's order with a
  /// channel's works is what close() builds on; the alarm's, that its notice is seen.
  bool healthy() const {
    return state_.load(std::memory_order_seq_cst) == CommunicatorState::kReady &&
           alarm_word_.load(std::memory_order_acquire) == 0;
  }
  /// Ok while nothing has failed; else as examine_alarm(). For those whom close() does not wait for. Cost: a lock.
  Status look_for_failure(std::string_view context);
  /// Why healthy() is false, with `context`; takes over what peers reported. Never ok.
  Status examine_alarm(std::string_view context);
  /// Makes `failure` the group's, if it is the first one, and tells the peers; gives the first one. What a peer reported
  /// before counts as first: it rings the alarm before it leaves, and its leaving is often the failure seen here. Returns
  /// once the failure is dumped, if it is to be.
  Status fail(const Status& failure);
  /// The record has got what the dump of a failure that was seen before lacks: what this rank would have called.
  void dump_again();
  transport::PeerState peer_state(Rank rank) const { return members_.links[rank]->peer_state(); }
  /// Those that have died or closed, in the order in which this rank learnt of it; none once it has closed.
  std::vector<Rank> gone();
  /// Progress thread only: a link's descriptor had news.
  void on_peer_news(Rank peer);
  /// `all_reduce on group "tp" (ranks 0-3)`.
  std::string where(std::string_view operation) const;

 private:
  Group(Membership membership, GroupOptions options, std::unique_ptr<flight::Recorder> recorder);
  Result<Channel*> pair_channel(Rank peer, Direction direction);
  /// One member of a domain: where the region lies in its window, and the mirrors, here of its head and there of this rank's.
  struct Part {
    Rank rank = 0;
    std::size_t region = 0;
    std::size_t mirror_here = 0;
    std::size_t mirror_there = 0;
  };
  exec::Domain domain_of(const exec::DomainLayout& layout, const std::vector<Part>& parts) const;
  Operation operation_of(const Call& call, const CallOptions& options, const plan::Extent* extent) const;
  /// Adds it to gone_, once. REQUIRES: mutex_ is held.
  void note_gone(Rank rank);
  /// fail() without the wait for the dump.
  Status note_failure(const Status& failure);
  /// REQUIRES: mutex_ is held; it is the first one.
  void set_failure(const Status& failure);
  /// REQUIRES: mutex_ is held, so that no call ends before they know.
  void tell_peers(const Status& failure, std::uint64_t source);
  /// Makes what a peer reported the group's failure, if there was none yet, and passes it on. REQUIRES: mutex_ is held.
  void adopt_notice();
  std::optional<Status> read_notices() const;
  /// True in a process that was forked off the one that made the group.
  bool is_inherited() const { return fork_generation_ != ProgressThread::fork_generation(); }
  Status inherited() const;

  Membership members_;
  GroupOptions options_;
  std::atomic_ref<std::uint64_t> alarm_word_;
  std::weak_ptr<Group> handle_;
  std::atomic<CommunicatorState> state_ = CommunicatorState::kReady;
  mutable std::mutex mutex_;
  Status first_failure_;
  int fork_generation_;
  std::vector<Rank> gone_;  ///< guarded by mutex_; may lack some that closed
  std::shared_mutex windows_in_use_;
  std::atomic<bool> shrunk_ = false;
  Announcements announcements_;

  std::unique_ptr<flight::Recorder> recorder_;
  flight::FailureDump dump_;
  WindowRegistry windows_;
  std::unique_ptr<Channel> group_channel_;
  std::unique_ptr<DeviceChannel> device_channel_;
  SourceTurns source_turns_;
  std::vector<std::unique_ptr<Channel>> pair_channels_;  ///< to rank p at 2p, from it at 2p + 1; made on first use
};

}  // namespace accord::comm
