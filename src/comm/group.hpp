#pragma once
// The group behind a Communicator: its members, its channels, and its first failure.

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "accord/communicator.hpp"
#include "base/clock.hpp"
#include "base/wait.hpp"
#include "comm/call.hpp"
#include "comm/channel/channel.hpp"
#include "comm/device/device_channel.hpp"
#include "comm/formation/formation_point.hpp"
#include "comm/group_options.hpp"
#include "comm/group_state.hpp"
#include "comm/made_from_group.hpp"
#include "comm/membership/announcements.hpp"
#include "comm/membership/membership.hpp"
#include "comm/progress.hpp"
#include "comm/window/window_registry.hpp"
#include "flight/recorder.hpp"

namespace accord::comm {

/// Joins the parts of one communicator. Its many methods pass calls on to the part that serves them.
class Group final : public MadeFromGroup, public std::enable_shared_from_this<Group> {
 public:
  /// Returns the group's first handle: the group closes when its last handle is released.
  static Result<std::shared_ptr<Group>> create(Membership membership, GroupOptions options);
  ~Group();
  /// Returns another handle; null if none is left.
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
  /// How the progress thread waits. It is one more thread beside each rank, so unless it has a core to itself it must
  /// leave the callers' cores to them.
  WaitPolicy wait_policy_of_progress() const {
    const bool has_core = topology().host_count() > 1 || topology().cores_of_host(0) >= 2 * size();
    return has_core || options_.hints.wait ? wait_policy() : WaitPolicy::kYield;
  }
  const Membership& membership() const { return members_; }
  const plan::Selector& selector() const { return members_.selector; }
  const std::vector<std::unique_ptr<transport::Link>>& links() const { return members_.links; }

  flight::Recorder& recorder() const { return *recorder_; }
  WindowRegistry& windows() { return windows_; }
  /// State of receives from any rank. One of them at a time polls the ranks, and the next starts where it stopped, so
  /// that ranks are served round-robin.
  struct SourceTurns {
    std::mutex mutex;
    std::size_t next = 0;  ///< guarded by mutex
  };
  SourceTurns& source_turns() { return source_turns_; }
  /// Removes a window: later calls on buffers in it are ordinary ones, and this rank releases the peers' memory of
  /// it.
  void remove_window(int number);

  /// Runs a call to its end, or starts it.
  Status run(const Call& call, const CallOptions& options);
  /// Runs a call on device memory, then `epilogue` on its output.
  Status run(const Call& call, const exec::PlanEpilogue& epilogue, const CallOptions& options);
  Work start(const Call& call, const CallOptions& options);
  /// check_call(), with the call and the group named in errors.
  Status check(const Call& call) const;
  /// Checks the call and returns the channel that runs it.
  Result<Channel*> channel_for(const Call& call);
  /// Returns the result of `use` for the operation of a checked call. Everything that the operation refers to lives
  /// until `use` returns.
  template <typename Use>
  auto with_operation(const Call& call, const CallOptions& options, Use use) const {
    if (call.division == Division::kEqual) return use(operation_of(call, options, nullptr));
    const plan::Extent extent = extent_of(call, rank());
    return use(operation_of(call, options, &extent));
  }
  /// For a checked call.
  std::unique_ptr<const OwnedOperation> operation_of(const Call& call, const CallOptions& options) const;
  /// Fails with kWrongState in a process that was forked from the one that created the group.
  Status used_after_fork() const {
    if (!is_inherited()) [[likely]]
      return {};
    return inherited();
  }

  /// Runs calls on GPUs.
  DeviceChannel& device_channel() { return *device_channel_; }
  /// Sends a message of the library itself, separate from the user's messages, to `peer`, which calls
  /// receive_internal().
  Status send_internal(std::span<const std::byte> bytes, Rank peer, Deadline deadline);
  Status receive_internal(std::span<std::byte> bytes, Rank peer, Deadline deadline);
  GroupState& state() { return state_; }
  const GroupState& state() const { return state_; }
  /// Ranks that have died or closed, in the order in which this rank learned of it; none once this rank has closed.
  std::vector<Rank> gone();
  void abort(std::string_view reason) override;
  /// abort() reaches `made` from now on, and at once if this rank has already aborted the group.
  void add_made(const std::weak_ptr<MadeFromGroup>& made);
  void close();
  /// Keeps the windows open for `operation` as long as the result is held: close() waits for it, after it has set the
  /// state. kClosed if the group is closed.
  Result<std::shared_lock<std::shared_mutex>> keep_open(std::string_view operation);
  /// The same, but only once: kWrongState the second time.
  Result<std::shared_lock<std::shared_mutex>> begin_shrink();
  /// Messages between the members about groups that they create. REQUIRES: keep_open() is held.
  Announcements& announcements() { return announcements_; }
  /// Lets this rank form a new group with any others. REQUIRES: keep_open() is held.
  FormationPoint& formation_point() { return formation_point_; }

  /// For example `all_reduce on group "tp" (ranks 0-3)`.
  std::string where(std::string_view operation) const;

 private:
  Group(Membership membership, GroupOptions options, std::unique_ptr<flight::Recorder> recorder);
  Result<Channel*> pair_channel(Rank peer, Direction direction);
  /// One member of a domain: where the region is in its window, and the two mirrors: `mirror_here` of the member's
  /// head, in this rank's window, and `mirror_there` of this rank's head, in the member's window.
  struct Part {
    Rank rank = 0;
    std::size_t region = 0;
    std::size_t mirror_here = 0;
    std::size_t mirror_there = 0;
  };
  exec::Domain domain_of(const exec::DomainLayout& layout, const std::vector<Part>& parts) const;
  Operation operation_of(const Call& call, const CallOptions& options, const plan::Extent* extent) const;
  /// True in a process that was forked from the one that created the group.
  bool is_inherited() const { return fork_generation_ != ProgressThread::fork_generation(); }
  Status inherited() const;

  Membership members_;
  GroupOptions options_;
  std::weak_ptr<Group> handle_;
  int fork_generation_;
  std::shared_mutex windows_in_use_;
  std::atomic<bool> shrunk_ = false;
  Announcements announcements_;
  FormationPoint formation_point_;
  std::mutex made_mutex_;
  std::vector<std::weak_ptr<MadeFromGroup>> made_;  ///< guarded by made_mutex_
  std::optional<std::string> abort_reason_;         ///< of this rank; likewise

  std::unique_ptr<flight::Recorder> recorder_;
  GroupState state_;
  WindowRegistry windows_;
  std::unique_ptr<Channel> group_channel_;
  std::unique_ptr<DeviceChannel> device_channel_;
  SourceTurns source_turns_;
  std::mutex pairs_mutex_;  ///< held while a channel of a pair is looked up or created; none is created once closed
  std::vector<std::unique_ptr<Channel>> pair_channels_;  ///< to rank p at 2p, from it at 2p + 1; created on first use
};

}  // namespace accord::comm
