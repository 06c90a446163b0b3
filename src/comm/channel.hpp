#pragma once
// One order of operations: the calls on a group, or the messages of one pair of ranks in one direction.

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
#include "comm/flight/recorder.hpp"
#include "comm/kept_messages.hpp"
#include "comm/pending_work.hpp"
#include "comm/turns.hpp"
#include "comm/window/window_table.hpp"
#include "exec/cursor.hpp"
#include "exec/domain.hpp"
#include "exec/lowered.hpp"
#include "plan/selector.hpp"
#include "topology/topology.hpp"

namespace accord::comm {

class Group;

/// Runs operations one after the other over one domain: a call that finds nothing before it runs on the caller's thread,
/// others are queued and run on the progress thread. Thread-safe. Lives as long as its Group.
class Channel final : public WorkDriver {
 public:
  /// `members[m]`: the group's rank that is member m of the domain. `direction`: of the messages.
  Channel(Group& group, exec::Domain domain, topology::Topology topology, std::vector<Rank> members,
          flight::OrderRecorder recorder, Direction direction = Direction::kNone);

  /// Runs one operation to its end; or a call, which is checked first.
  Status run(const Operation& operation);
  Status run(const Call& call, const CallOptions& options);
  /// Starts one; the progress thread takes it up if it does not end at once.
  std::shared_ptr<PendingWork> start(const Operation& operation);
  /// Queues one. `owned`: the channel was idle and is the caller's now, who drives it by advance(), or start()s to, or hands it over.
  struct Queued {
    std::shared_ptr<PendingWork> work;
    bool owned = false;
  };
  Queued enqueue(const Operation& operation);

  /// Works that have ended, and how: whoever drove it tells, once nothing is held that its callbacks may need. The channel's next
  /// operation waits until they are done, so that its caller finds them so.
  struct Ended {
    std::shared_ptr<PendingWork> work;
    Status status;
    std::vector<std::shared_ptr<PendingWork>> early;  ///< well, and before their turn
    std::atomic<std::uint32_t>* untold = nullptr;     ///< the channel's; set if there is any
    bool has_any() const { return untold != nullptr; }
    void tell();
  };
  /// Whether a message of some tag has come; perhaps, if others came before it, or another operation takes in what comes.
  enum class Come : std::uint8_t { kNo, kPerhaps, kYes };
  struct Tried {
    Come come = Come::kNo;
    Status status = {};  ///< kYes: how it was received
  };
  /// Receives a message of the operation's tag if one has come; else takes in what has, so that one may.
  Tried try_receive(const Operation& operation);

  /// Its owner only: goes on with the queue, which is not empty; kIdle once it is, and the channel is given up.
  enum class Advance : std::uint8_t { kIdle, kMoved, kStuck };
  Advance advance(Ended& ended, exec::Patience patience = {});
  /// Its owner only, who has queued one in front: drives it as far as it goes at once, if that takes no time worth speaking of, and hands
  /// over what is left.
  void begin_driving(const Operation& operation);
  /// Its owner only: gives it to the progress thread, its queue not being empty.
  void hand_over();

  /// What follows is for channels that were handed over, which one thread drives at a time. Each handover has a number.
  enum class Driven : std::uint8_t { kIdle, kMoved, kStuck, kByAnother };
  /// The progress thread: goes on. kIdle: that handover is over.
  Driven drive(std::uint64_t handover);
  bool drive_until_ended(const PendingWork& work, Deadline deadline) override;

  /// Lets go of windows that are no more, unless an operation runs: that one's successor will.
  void forget_windows();

  /// True while no operation runs or waits; once the group has failed or closed it becomes so by itself. REQUIRES what Turns::idle() does.
  bool idle() const { return turns_.idle(); }
  Group& group() const { return group_; }

 private:
  /// A plan as it was lowered for a request.
  struct Prepared {
    exec::LoweredPlan plan;
    exec::RequestRecord request;      ///< as callers make it
    bool registered = false;          ///< their buffers lie in windows
    std::vector<std::size_t> extent;  ///< what extent_words() gave; empty for equal parts
    bool in_place = false;            ///< and have bytes in common
    bool apart = false;               ///< the plan is right only if input and output have none
    std::uint64_t algorithm = 0;      ///< the recorder's number of it
  };

  /// The caller, who took the turn, is done.
  void give_back();
  /// advance() of a channel that was handed over. REQUIRES: driving_ is held.
  Advance advance_handed_over(Ended& ended, exec::Patience patience);

  /// One that waits for its turn.
  struct Queuer {
    std::shared_ptr<PendingWork> work;
    std::uint64_t number = 0;  ///< of the operation
  };

  // REQUIRES, for all of these: the caller owns the channel.
  /// Makes the cursor ready for `operation`, the one of that number, which lives until it has ended.
  Status begin(const Operation& operation, std::uint64_t number);
  Status begin_in_windows(const Operation& operation);
  Status begin_counts();
  /// Starts the cursor on the operation, or on the counts of its parts.
  void start_cursor(const Prepared& prepared, const void* input, void* output);
  Status begin_data(const exec::RequestRecord& record, const plan::Extent* extent, const Prepared* known = nullptr);
  /// Goes on with the operation. kMismatch also if its counts do not fit, of which the group has been told then.
  exec::Progress poll(exec::Patience patience = {});
  exec::Progress go_on_with_data();
  /// The plan for a request, ready to run: built, lowered and kept on first use. `extent`: of parts that differ.
  Result<const Prepared*> prepare(const exec::RequestRecord& record, const plan::Extent* extent);
  bool registered() const { return placement_.windows != nullptr; }
  /// Where it is kept, and whether what is there is it.
  std::unique_ptr<Prepared>& slot_of(const exec::RequestRecord& record, const plan::Extent* extent);
  bool serves(const Prepared* prepared, const exec::RequestRecord& record, const plan::Extent* extent) const;
  Result<Prepared> lower(const exec::RequestRecord& record, const plan::Extent* extent);
  Result<const plan::Plan*> plan_for(const plan::AlgorithmEntry& algorithm, Rank root);
  Status run_owned(const Operation& operation, std::uint64_t number);
  Status run_owned(const Call& call, const CallOptions& options);
  /// Slow half of a wait: why the running operation must end, if it must.
  Status examine(exec::Progress progress, const exec::RequestRecord& record, Deadline deadline);
  Status timed_out(std::string_view what) const;
  Status find_mismatch() const;
  std::string where(const exec::RequestRecord& record) const;
  Rank rank_waited_for() const;
  /// Of a collective call: who keeps it waiting.
  std::vector<Rank> ranks_late() const;
  /// What it waited for long has come; who asks what it waits for shall know.
  void tell_not_waiting() {
    if (waited_long_) domain_.tell_waiting(-1, Clock::now());
  }
  /// The last word on an operation that shall end by `failure`: it may have ended well after all, or moved on, in which case
  /// it goes on; else the group fails.
  std::optional<Status> conclude(const Status& failure);
  Advance end_front(Status status, Ended& ended);
  /// `ended` has some, which are not told yet.
  void note_untold(Ended& ended) {
    if (std::exchange(ended.untold, &untold_) == nullptr) untold_.fetch_add(1, std::memory_order_relaxed);
  }
  /// What peers are told, but for the tag of a message.
  const exec::RequestRecord& told(const Operation& operation) const {
    return operation.record.collective == Collective::kSendRecv ? operation.record : cursor_.plan().record;
  }
  /// The group fails, and the running operation with it.
  exec::Progress refuse(const Status& failure);

  // Messages with tags (channel_messages.cpp).
  /// A message under way that is not the running operation's.
  struct Aside {
    KeptMessage message;
    Queuer receive;                  ///< that it is for; none: it is to be kept
    flight::OrderRecorder recorder;  ///< of that one
  };
  /// Makes the cursor ready for a message, from or to memory that fits it.
  Status begin_message(const exec::RequestRecord& record, const void* input, void* output);
  Status begin_receive(const Operation& operation);
  /// Goes on with a receive that began as if its message came next, unless another one does.
  exec::Progress look_for_others(exec::Progress progress);
  /// Goes on with a receive that waits for its message to come next.
  exec::Progress receive(exec::Patience patience);
  void wait_for_record();
  /// The first receive of that tag in the queue but the running operation; none if there is none.
  Queuer find_receive(Rank tag);
  /// `receive`: that the message is for; none: it is to be kept.
  Status begin_aside(const exec::RequestRecord& record, Queuer receive);
  /// kDone once that message is where it belongs.
  exec::Progress go_on_aside(exec::Patience patience);
  std::optional<KeptMessage> take_kept(Rank tag);
  /// What is kept goes to the receives in the queue that wait for it.
  Status give_kept();
  /// kMismatch if a message is not what its receive expects.
  Status check_fits(const exec::RequestRecord& message, const Operation& receive) const;
  Status deliver(const KeptMessage& message, const Operation& receive) const;
  /// Whether a message of that tag is kept or comes next. Others that come go aside.
  Come look_for_message(const Operation& operation);
  /// Ends a receive in the queue before its turn has come.
  void end_early(const Queuer& receive);
  /// Of those that did, whoever waits.
  void tell_early() {
    for (const auto& work : std::exchange(early_, {})) work->finish({});
  }
  /// True while a receive waits for what its sender says of the next message.
  bool waits_for_message() const { return stage_ == Stage::kMessage && !aside_; }

  /// REQUIRES: mutex_ is held.
  Queued enqueue_locked(const Operation& operation);

  static constexpr std::size_t kPrepared = 64;

  Group& group_;
  exec::Domain domain_;
  topology::Topology topology_;
  std::vector<Rank> members_;
  WaitPolicy policy_;
  exec::Patience patience_;  ///< of a thread that runs one operation

  /// Who has the turn owns the channel. Of an operation that begins and a close() either the one sees the other's store or the
  /// other way round.
  Turns turns_;
  std::mutex mutex_;
  std::deque<Queuer> queue_;
  std::atomic<std::uint64_t> queued_ = 0;  ///< grows with each one
  std::atomic<std::uint32_t> untold_ = 0;  ///< how many threads have works that have ended and are not done yet

  std::mutex driving_;           ///< held by who drives it after it was handed over
  std::uint64_t handovers_ = 0;  ///< guarded by driving_
  bool handed_over_ = false;     ///< the same

  // Used by the owner only.
  /// The last call that ran by itself, with what was found out about it: programs make the same calls over and over.
  struct LastCall {
    Call call = {.division = Division::kByCounts};  ///< is like no other
    Operation operation;
    const Prepared* prepared = nullptr;  ///< null: to be looked for
  };
  LastCall last_call_;
  exec::Cursor cursor_;
  const Operation* operation_ = nullptr;
  /// kMessage: it is not known yet whether the message of this receive comes next.
  enum class Stage : std::uint8_t { kCounts, kMessage, kData, kRefused } stage_ = Stage::kData;
  CountsExchange counts_;
  std::shared_ptr<const WindowTable> windows_;  ///< as they were at the last look
  exec::Placement placement_;                   ///< of the operation's buffers
  std::vector<int> processes_;                  ///< of the members, where they may read each other's memory
  exec::Placement in_memory_;                   ///< of the buffers of one that is served so
  std::vector<std::byte> copied_;               ///< the input of one that is served so in place
  flight::OrderRecorder recorder_;
  std::uint64_t algorithm_ = 0;    ///< as the recorder numbers them, of the operation that runs
  std::uint64_t number_ = 0;       ///< of the operation that runs or ran last, counted from 1
  std::uint64_t last_number_ = 0;  ///< the highest of those that began or ended
  bool waited_long_ = false;       ///< it did
  bool refused_one_ = false;       ///< a call has met a group that had failed; only the first one is recorded
  std::array<std::unique_ptr<Prepared>, kPrepared> prepared_;
  std::uint64_t prepared_version_ = 0;  ///< of the registry of plans, when they were prepared
  std::vector<std::unique_ptr<plan::Plan>> plans_;
  bool front_started_ = false;
  std::uint64_t front_position_ = 0;
  std::uint32_t front_stuck_ = 0;
  const bool sends_;
  const bool receives_;
  std::atomic<Rank> running_tag_ = 0;  ///< of the receive that runs or ran last
  bool hopes_ = false;                 ///< a receive began as if its message came next, which is not known yet
  std::uint32_t polls_in_hope_ = 0;
  std::uint64_t round_before_ = 0;  ///< of the domain, before the receive
  std::uint32_t history_before_ = 0;
  std::optional<Aside> aside_;
  KeptMessages kept_;  ///< changed with mutex_ held, so that others may look while they hold it
  std::vector<std::shared_ptr<PendingWork>> early_;  ///< receives that have ended so and are to be told
  bool kept_more_ = false;                           ///< since kept messages were last given to the queue
  std::uint64_t queued_seen_ = 0;                    ///< queued_ was that then
};

}  // namespace accord::comm
