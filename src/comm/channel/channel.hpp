#pragma once
// One ordered sequence of operations: the calls on a group, or the messages of one pair of ranks in one direction.

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string_view>
#include <vector>

#include "accord/communicator.hpp"
#include "base/wait.hpp"
#include "comm/channel/message_matcher.hpp"
#include "comm/channel/operation_queue.hpp"
#include "comm/channel/operation_runner.hpp"
#include "comm/pending_work.hpp"

namespace accord::comm {

class Group;

/// Runs operations one after the other on one domain. A call that finds the channel idle runs on the caller's thread;
/// others are queued and run on the progress thread. Thread-safe. Lives as long as its Group.
///
/// OperationQueue says whose turn it is, OperationRunner runs the operation, and MessageMatcher finds the receive that
/// an arriving message is for. The channel decides which thread drives them.
class Channel final : public WorkDriver {
 public:
  /// `members[m]`: the group's rank that is member m of the domain. `direction`: that of the messages.
  Channel(Group& group, exec::Domain domain, topology::Topology topology, std::vector<Rank> members,
          flight::OrderRecorder recorder, Direction direction = Direction::kNone);

  /// Runs one operation to its end. The second overload checks the call first.
  Status run(const Operation& operation);
  Status run(const Call& call, const CallOptions& options);
  /// Starts one operation. The progress thread continues it if it does not end at once.
  std::shared_ptr<PendingWork> start(const Operation& operation);
  /// Queues one operation. `owned`: the channel was idle and belongs to the caller, who drives it by advance(),
  /// continues as start() does, or hands it over.
  struct Queued {
    std::shared_ptr<PendingWork> work;
    bool owned = false;
  };
  Queued enqueue(const Operation& operation);

  struct ReceiveAttempt {
    Arrival arrival = Arrival::kNo;
    Status status = {};  ///< kYes: how it was received
  };
  /// Receives a message with the operation's tag if one has arrived. Otherwise takes in the messages that have
  /// arrived, so that the wanted one can. REQUIRES: the channel receives.
  ReceiveAttempt try_receive(const Operation& operation);

  /// For the owner only: continues with the queue, which is not empty. Returns kIdle once it is empty; the channel is
  /// then released.
  enum class Advance : std::uint8_t { kIdle, kMoved, kStalled };
  Advance advance(EndedWorks& ended, exec::PollLimits limits = {});
  /// For the owner only, after it queued `operation` at the front: drives it as far as it gets at once, if that is
  /// quick, and hands over the rest.
  void begin_driving(const Operation& operation);
  /// For the owner only: gives the channel to the progress thread. The queue is not empty.
  void hand_over();

  /// The rest is for channels that were handed over, which one thread at a time drives. Each handover has a number.
  enum class Driven : std::uint8_t { kIdle, kMoved, kStalled, kByAnother };
  /// Called by the progress thread: continues. Returns kIdle once that handover is over.
  Driven drive(std::uint64_t handover);
  bool drive_until_ended(const PendingWork& work, Deadline deadline) override;

  /// Releases windows that no longer exist, unless an operation is running: then its successor does.
  void forget_windows();

  /// True while no operation runs or waits. Becomes true by itself once the group has failed or closed. REQUIRES: as
  /// for Turns::idle().
  bool idle() const { return queue_.turns().idle(); }

 private:
  Queued enqueue(OperationQueue::Lock& lock, const Operation& operation);
  /// Ends the turn that the caller took.
  void release_turn();
  /// advance() for a channel that was handed over. REQUIRES: handover_.mutex is held.
  Advance advance_handed_over(EndedWorks& ended, exec::PollLimits limits);

  // REQUIRES, for all of these: the caller owns the channel.
  Status run_owned(const Operation& operation, std::uint64_t number);
  Status run_owned(const Call& call, const CallOptions& options);
  Status begin(const Operation& operation, std::uint64_t number);
  exec::Progress poll(exec::PollLimits limits = {}) { return matcher_ ? matcher_->poll(limits) : runner_.poll(limits); }
  Advance end_front(Status status, EndedWorks& ended);
  /// The slow half of a wait: returns why the running operation must end, or ok.
  Status examine(exec::Progress progress, const exec::RequestRecord& record, Deadline deadline);
  /// Asked after each poll in which the first operation did not proceed.
  bool is_examination_due();
  /// Last check of an operation that is about to end with `failure`. Returns ok if it has ended well after all,
  /// nullopt if it has moved on and continues. Otherwise the group fails.
  std::optional<Status> conclude(const Status& failure);
  Status timed_out(std::string_view what) const;
  Rank rank_waited_for() const;
  /// True while a receive waits for its sender's record of the next message.
  bool waits_for_record() const { return matcher_ && matcher_->waits_for_record(); }

  Group& group_;
  const WaitPolicy policy_;
  const exec::PollLimits limits_;  ///< for a thread that runs one operation
  const Direction direction_;

  /// When an operation begins during a close(), at least one of the two sees the other's store.
  OperationQueue queue_;
  OperationRunner runner_;
  std::optional<MessageMatcher> matcher_;  ///< of a channel that receives

  struct Handover {
    std::mutex mutex;           ///< held by the thread that drives the channel after a handover
    std::uint64_t number = 0;   ///< guarded by mutex
    bool is_under_way = false;  ///< guarded by mutex
  };
  Handover handover_;

  // Used by the owner only.
  /// The last call that ran at once, with what was computed for it: programs repeat the same calls.
  struct LastCall {
    Call call = {.division = Division::kByCounts};  ///< matches no call
    Operation operation;
    PlanCache::Known plan = {};
  };
  LastCall last_call_;
  /// The first operation of the queue.
  struct Front {
    bool has_begun = false;
    std::uint64_t position = 0;  ///< of the cursor when it last moved
    std::uint32_t stalled_polls = 0;
    Clock::time_point examined = {};  ///< when it last looked for failures, or began to stall
  };
  Front front_;
};

}  // namespace accord::comm
