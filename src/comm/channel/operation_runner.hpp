#pragma once
// Runs the operations of one channel, one at a time: begins them, moves their data and finds out why they must end.

#include <algorithm>
#include <cassert>
#include <string>
#include <utility>
#include <vector>

#include "accord/communicator.hpp"
#include "base/clock.hpp"
#include "comm/channel/buffer_places.hpp"
#include "comm/channel/counts_exchange.hpp"
#include "comm/channel/operation_stage.hpp"
#include "comm/channel/plan_cache.hpp"
#include "comm/group_state.hpp"
#include "comm/pending_work.hpp"
#include "comm/window/window_registry.hpp"
#include "exec/cursor.hpp"
#include "exec/domain.hpp"
#include "flight/recorder.hpp"
#include "topology/topology.hpp"

namespace accord::comm {

class Group;

/// Used by the owner of the channel only, except where() and, with the queue locked, recorder().queue().
/// Mostly methods of one line, by which the channel and its matcher see what runs.
class OperationRunner {
 public:
  /// `members[m]`: the group's rank that is member m of the domain. `direction`: that of the messages.
  OperationRunner(Group& group, exec::Domain domain, topology::Topology topology, std::vector<Rank> members,
                  flight::OrderRecorder recorder, Direction direction);

  /// Makes `operation` the running one. It lives until it has ended. Fails if the group has failed.
  Status accept(const Operation& operation, std::uint64_t number) {
    number_ = number;
    last_number_ = std::max(last_number_, number);
    if (!state_.healthy()) [[unlikely]]
      return refuse_call(operation.record);
    operation_ = &operation;
    waited_long_ = false;
    return {};
  }
  /// Starts the accepted operation. `known`: the plan of the same call before, if there is one; it is kept up to date.
  Status begin(PlanCache::Known* known = nullptr) {
    if (operation_->record.phase == exec::Phase::kCountsFirst) [[unlikely]]
      return begin_counts();
    // Ranks agree on whether the buffers of all ranks are in windows, whichever plan serves them.
    if (windows_.version() != 0) [[unlikely]] {
      places_.find(windows_, *operation_, domain_);
      known = nullptr;
    }
    Status status = begin_data(operation_->record, operation_->extent, known);
    if (status.ok()) [[likely]]
      begin_in(Stage::kData);
    return status;
  }
  /// Starts to move the data of the accepted operation with the plan for `record`. The stage stays the same.
  Status begin_data(const exec::RequestRecord& record, const plan::Extent* extent, PlanCache::Known* known = nullptr);
  /// Starts to move a message from or to memory that fits it. The stage stays the same.
  Status begin_message(const exec::RequestRecord& record, const void* input, void* output);
  /// Continues the operation. Returns kMismatch in kRefused.
  exec::Progress poll(exec::PollLimits limits);
  /// Fails the group, and the operation with it.
  exec::Progress refuse(const Status& failure);

  /// The operation that was accepted last.
  const Operation& operation() const { return *operation_; }
  bool is_running(const Operation& operation) const { return &operation == operation_; }
  Stage stage() const { return stage_; }
  void move_to(Stage stage) {
    assert(is_stage_move(stage_, stage));
    stage_ = stage;
  }
  /// Enters the first stage of an operation.
  void begin_in(Stage stage) {
    stage_ = stage;
    if (stage == Stage::kMessage) algorithm_ = 0;
  }
  /// Looks for the message of a receive that does not run.
  void look_for(const Operation& receive) {
    operation_ = &receive;
    begin_in(Stage::kMessage);
  }

  exec::Domain& domain() { return domain_; }
  const exec::Domain& domain() const { return domain_; }
  exec::Cursor& cursor() { return cursor_; }
  const exec::Cursor& cursor() const { return cursor_; }
  flight::OrderRecorder& recorder() { return recorder_; }
  /// The recorder's number of the running algorithm; 0 for a receive that waits for its message.
  std::uint64_t algorithm() const { return algorithm_; }
  std::uint64_t next_number() const { return last_number_ + 1; }
  /// Notes that the operation with that number has ended before its turn.
  void count_ended(std::uint64_t number) { last_number_ = std::max(last_number_, number); }
  void forget_windows() { places_.forget(); }

  /// Records that the operation begins.
  void record_begin(std::size_t bytes) { recorder_.begin(number_, visible_record(), bytes, algorithm_); }
  /// Notes that the operation has waited long for `rank`; -1 if unknown.
  void note_long_wait(Rank rank) { recorder_.waiting_long(rank, !std::exchange(waited_long_, true)); }
  /// Ends a long wait: peers that ask what this rank waits for must see that it no longer waits.
  void clear_waiting() {
    if (waited_long_) domain_.publish_waiting(-1, Clock::now());
  }

  // The parts of an error.
  Rank me() const { return members_[domain_.me()]; }
  Rank rank_of(int member) const { return members_[member]; }
  /// The call and the group.
  std::string where(const exec::RequestRecord& record) const;
  /// kMismatch if a peer made another call, as far as its records still show.
  Status find_mismatch() const;
  /// The ranks that keep a collective call waiting.
  std::vector<Rank> late_ranks() const;

 private:
  /// The record that peers see. For a message it is the operation's own, since the plan's lacks the tag.
  const exec::RequestRecord& visible_record() const {
    return operation_->record.collective == Collective::kSendRecv ? operation_->record : cursor_.plan().record;
  }
  /// Refuses a call because the group has failed.
  Status refuse_call(const exec::RequestRecord& record);
  Status begin_counts();
  exec::Progress continue_with_data();
  PlanKey key_of(const exec::RequestRecord& record, const plan::Extent* extent) const {
    return {.record = record,
            .extent = extent,
            .counts = counts_.count(),
            .registered = places_.registered(),
            .in_place = places_.in_place()};
  }
  /// Returns the plan for a request, ready to run.
  Result<const PreparedPlan*> prepare(const exec::RequestRecord& record, const plan::Extent* extent);
  /// Starts the cursor on the operation, or on the counts of its parts.
  void start_cursor(const PreparedPlan& prepared, const void* input, void* output);

  Group& group_;
  GroupState& state_;  ///< the group's, as is windows_: group.hpp includes this file
  WindowRegistry& windows_;
  exec::Domain domain_;
  const topology::Topology topology_;
  const std::vector<Rank> members_;
  const Direction direction_;
  PlanCache plans_;
  exec::Cursor cursor_;
  const Operation* operation_ = nullptr;
  Stage stage_ = Stage::kData;
  CountsExchange counts_;
  BufferPlaces places_;
  flight::OrderRecorder recorder_;
  std::uint64_t algorithm_ = 0;
  std::uint64_t number_ = 0;       ///< of the operation that runs or ran last, counted from 1
  std::uint64_t last_number_ = 0;  ///< the highest number that began or ended
  bool waited_long_ = false;       ///< the running operation has waited long
  bool has_refused_call_ = false;  ///< a call has met a failed group; only the first such call is recorded
};

}  // namespace accord::comm
