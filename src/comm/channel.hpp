#pragma once
// One ordered sequence of operations: the calls on a group, or the messages of one pair of ranks in one direction.

#include <array>
#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "accord/communicator.hpp"
#include "base/wait.hpp"
#include "comm/counts_exchange.hpp"
#include "comm/kept_messages.hpp"
#include "comm/pending_work.hpp"
#include "comm/turns.hpp"
#include "comm/window/window_table.hpp"
#include "exec/cursor.hpp"
#include "exec/domain.hpp"
#include "exec/lowered.hpp"
#include "flight/recorder.hpp"
#include "plan/selector.hpp"
#include "topology/topology.hpp"

namespace accord::comm {

class Group;

/// Runs operations one after the other on one domain. A call that finds the channel idle runs on the caller's thread;
/// others are queued and run on the progress thread. Thread-safe. Lives as long as its Group.
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

  /// Works that have ended, and how. The thread that drove the channel calls tell() once it holds nothing that
  /// callbacks may need. The channel's next operation waits until the works are done, so that its caller sees them as
  /// done.
  struct Ended {
    std::shared_ptr<PendingWork> work;
    Status status;
    std::vector<std::shared_ptr<PendingWork>> early;   ///< ended well, before their turn
    std::atomic<std::uint32_t>* unnotified = nullptr;  ///< counter of the channel; null if there is no work here
    bool has_any() const { return unnotified != nullptr; }
    void notify();
  };
  /// Whether a message with a tag has arrived. kPerhaps: other messages arrived before it, or another operation is
  /// receiving.
  enum class Arrival : std::uint8_t { kNo, kPerhaps, kYes };
  struct ReceiveAttempt {
    Arrival arrival = Arrival::kNo;
    Status status = {};  ///< kYes: how it was received
  };
  /// Receives a message with the operation's tag if one has arrived. Otherwise takes in the messages that have
  /// arrived, so that the wanted one can.
  ReceiveAttempt try_receive(const Operation& operation);

  /// For the owner only: continues with the queue, which is not empty. Returns kIdle once it is empty; the channel is
  /// then released.
  enum class Advance : std::uint8_t { kIdle, kMoved, kStalled };
  Advance advance(Ended& ended, exec::PollLimits limits = {});
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
  bool idle() const { return turns_.idle(); }
  Group& group() const { return group_; }

 private:
  /// A plan, lowered for a request.
  struct Prepared {
    exec::LoweredPlan plan;
    exec::RequestRecord request;      ///< as callers make it
    bool registered = false;          ///< the callers' buffers are in windows
    std::vector<std::size_t> extent;  ///< from words_of(); empty for equal parts
    bool in_place = false;            ///< registered, and input and output overlap
    bool apart = false;               ///< the plan requires input and output that do not overlap
    std::uint64_t algorithm = 0;      ///< its number in the recorder
  };

  /// Ends the turn that the caller took.
  void release_turn();
  /// advance() for a channel that was handed over. REQUIRES: driving_ is held.
  Advance advance_handed_over(Ended& ended, exec::PollLimits limits);

  /// An operation that waits for its turn.
  struct QueuedOperation {
    std::shared_ptr<PendingWork> work;
    std::uint64_t number = 0;  ///< of the operation
  };

  // REQUIRES, for all of these: the caller owns the channel.
  /// Prepares the cursor for `operation`, which has that number and lives until it has ended.
  Status begin(const Operation& operation, std::uint64_t number);
  Status begin_in_windows(const Operation& operation);
  Status begin_counts();
  /// Starts the cursor on the operation, or on the counts of its parts.
  void start_cursor(const Prepared& prepared, const void* input, void* output);
  Status begin_data(const exec::RequestRecord& record, const plan::Extent* extent, const Prepared* known = nullptr);
  /// Continues the operation. Also returns kMismatch if its counts do not fit; the group has then been notified.
  exec::Progress poll(exec::PollLimits limits = {});
  exec::Progress continue_with_data();
  /// Returns the plan for a request, ready to run: built, lowered and kept on first use. `extent`: of unequal parts.
  Result<const Prepared*> prepare(const exec::RequestRecord& record, const plan::Extent* extent);
  bool registered() const { return placement_.windows != nullptr; }
  /// The slot where the plan is kept, and whether the plan found there is the right one.
  std::unique_ptr<Prepared>& slot_of(const exec::RequestRecord& record, const plan::Extent* extent);
  bool serves(const Prepared* prepared, const exec::RequestRecord& record, const plan::Extent* extent) const;
  Result<Prepared> lower(const exec::RequestRecord& record, const plan::Extent* extent);
  Result<const plan::Plan*> plan_for(const plan::AlgorithmEntry& algorithm, Rank root);
  Status run_owned(const Operation& operation, std::uint64_t number);
  Status run_owned(const Call& call, const CallOptions& options);
  /// The slow half of a wait: returns why the running operation must end, or ok.
  Status examine(exec::Progress progress, const exec::RequestRecord& record, Deadline deadline);
  Status timed_out(std::string_view what) const;
  Status find_mismatch() const;
  std::string where(const exec::RequestRecord& record) const;
  Rank rank_waited_for() const;
  /// The ranks that keep a collective call waiting.
  std::vector<Rank> ranks_late() const;
  /// Ends a long wait: peers that ask what this rank waits for must see that it no longer waits.
  void clear_waiting() {
    if (waited_long_) domain_.publish_waiting(-1, Clock::now());
  }
  /// Last check of an operation that is about to end with `failure`. Returns ok if it has ended well after all,
  /// nullopt if it has moved on and continues. Otherwise the group fails.
  std::optional<Status> conclude(const Status& failure);
  Advance end_front(Status status, Ended& ended);
  /// Notes that `ended` holds works whose waiters are not notified yet.
  void note_unnotified(Ended& ended) {
    if (std::exchange(ended.unnotified, &unnotified_) == nullptr) unnotified_.fetch_add(1, std::memory_order_relaxed);
  }
  /// The record that peers see. For a message it is the operation's own, since the plan's lacks the tag.
  const exec::RequestRecord& visible_record(const Operation& operation) const {
    return operation.record.collective == Collective::kSendRecv ? operation.record : cursor_.plan().record;
  }
  /// Fails the group, and the running operation with it.
  exec::Progress refuse(const Status& failure);

  // Messages with tags (channel_messages.cpp).
  /// A message in progress that is not the running operation's.
  struct SideMessage {
    KeptMessage message;
    QueuedOperation receive;         ///< the receive that it is for; empty if the message is to be kept
    flight::OrderRecorder recorder;  ///< of that receive
  };
  /// Prepares the cursor for a message, from or to memory that fits it.
  Status begin_message(const exec::RequestRecord& record, const void* input, void* output);
  Status begin_receive(const Operation& operation);
  /// Continues a receive that began as if its message were next, unless another message is.
  exec::Progress check_other_messages(exec::Progress progress);
  /// Continues a receive that waits until its message is next.
  exec::Progress receive(exec::PollLimits limits);
  void wait_for_record();
  /// The first receive with that tag in the queue, except the running operation; empty if there is none.
  QueuedOperation find_receive(Rank tag);
  /// `receive`: the receive that the message is for; empty if the message is to be kept.
  Status begin_side_message(const exec::RequestRecord& record, QueuedOperation receive);
  /// Returns kDone once that message is where it belongs.
  exec::Progress continue_side_message(exec::PollLimits limits);
  std::optional<KeptMessage> take_kept(Rank tag);
  /// Gives kept messages to the receives in the queue that wait for them.
  Status deliver_kept();
  /// Fails with kMismatch if a message is not what its receive expects.
  Status check_fits(const exec::RequestRecord& message, const Operation& receive) const;
  Status deliver(const KeptMessage& message, const Operation& receive) const;
  /// Returns whether a message with that tag is kept or is next. Other messages that arrive are set aside.
  Arrival find_message(const Operation& operation);
  /// Ends a receive in the queue before its turn.
  void end_early(const QueuedOperation& receive);
  /// Notifies the waiters of receives that ended early.
  void notify_early() {
    for (const auto& work : std::exchange(early_, {})) work->finish({});
  }
  /// True while a receive waits for its sender's record of the next message.
  bool waits_for_message() const { return stage_ == Stage::kMessage && !side_message_; }

  /// REQUIRES: mutex_ is held.
  Queued enqueue_locked(const Operation& operation);

  static constexpr std::size_t kPrepared = 64;

  Group& group_;
  exec::Domain domain_;
  topology::Topology topology_;
  std::vector<Rank> members_;
  WaitPolicy policy_;
  exec::PollLimits limits_;  ///< for a thread that runs one operation

  /// The thread that has the turn owns the channel. When an operation begins during a close(), at least one of the
  /// two sees the other's store.
  Turns turns_;
  std::mutex mutex_;
  std::deque<QueuedOperation> queue_;
  std::atomic<std::uint64_t> queued_ = 0;      ///< grows with each queued operation
  std::atomic<std::uint32_t> unnotified_ = 0;  ///< threads that hold ended works which are not done yet

  std::mutex driving_;           ///< held by the thread that drives the channel after a handover
  std::uint64_t handovers_ = 0;  ///< guarded by driving_
  bool handed_over_ = false;     ///< guarded by driving_

  // Used by the owner only.
  /// The last call that ran at once, with what was computed for it: programs repeat the same calls.
  struct LastCall {
    Call call = {.division = Division::kByCounts};  ///< matches no call
    Operation operation;
    const Prepared* prepared = nullptr;  ///< null: must be looked up
  };
  LastCall last_call_;
  exec::Cursor cursor_;
  const Operation* operation_ = nullptr;
  /// kMessage: it is not yet known whether the message of this receive is next.
  enum class Stage : std::uint8_t { kCounts, kMessage, kData, kRefused } stage_ = Stage::kData;
  CountsExchange counts_;
  std::shared_ptr<const WindowTable> windows_;  ///< as of the last look
  exec::Placement placement_;                   ///< of the operation's buffers
  std::vector<int> processes_;                  ///< of the members, if they may read each other's memory
  exec::Placement in_memory_;                   ///< of the buffers, for plans that read peers' memory
  std::vector<std::byte> copied_;               ///< copy of the input, for such a plan in place
  flight::OrderRecorder recorder_;
  std::uint64_t algorithm_ = 0;    ///< the recorder's number of the running operation's algorithm
  std::uint64_t number_ = 0;       ///< of the operation that runs or ran last, counted from 1
  std::uint64_t last_number_ = 0;  ///< the highest number that began or ended
  bool waited_long_ = false;       ///< the running operation has waited long
  bool has_refused_call_ = false;  ///< a call has met a failed group; only the first such call is recorded
  std::array<std::unique_ptr<Prepared>, kPrepared> prepared_;
  std::uint64_t prepared_version_ = 0;  ///< version of the plan registry when they were prepared
  std::vector<std::unique_ptr<plan::Plan>> plans_;
  bool front_started_ = false;
  std::uint64_t front_position_ = 0;
  std::uint32_t front_stalled_polls_ = 0;
  const bool sends_;
  const bool receives_;
  std::atomic<Rank> running_tag_ = 0;  ///< of the receive that runs or ran last
  bool is_speculative_ = false;        ///< a receive began as if its message were next; not known yet
  std::uint32_t speculative_polls_ = 0;
  std::uint64_t round_before_ = 0;  ///< the domain's round before the receive
  std::uint32_t history_before_ = 0;
  std::optional<SideMessage> side_message_;
  KeptMessages kept_;  ///< changed with mutex_ held, so that other threads may look while they hold it
  std::vector<std::shared_ptr<PendingWork>> early_;  ///< receives that ended early, not yet announced
  bool has_new_kept_ = false;                        ///< since kept messages were last given to the queue
  std::uint64_t queued_at_delivery_ = 0;             ///< queued_ at that time
};

}  // namespace accord::comm
