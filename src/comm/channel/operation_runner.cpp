// An operation with unequal parts whose counts only some ranks know begins with a round that gathers them. Every
// other one begins with its plan: looked up by the request, or known from the same call before.
#include "comm/channel/operation_runner.hpp"

#include <fmt/format.h>

#include <set>
#include <utility>

#include "comm/group.hpp"
#include "comm/mismatch.hpp"

namespace accord::comm {

OperationRunner::OperationRunner(Group& group, exec::Domain domain, topology::Topology topology,
                                 std::vector<Rank> members, flight::OrderRecorder recorder, Direction direction)
    : group_(group),
      state_(group.state()),
      windows_(group.windows()),
      domain_(std::move(domain)),
      topology_(std::move(topology)),
      members_(std::move(members)),
      direction_(direction),
      plans_(group, domain_, topology_),
      places_(topology_),
      recorder_(recorder) {}

Status OperationRunner::refuse_call(const exec::RequestRecord& record) {
  if (!std::exchange(has_refused_call_, true)) {
    recorder_.refuse(number_, record);
    state_.dump_again();
  }
  return state_.examine_alarm(where(record));
}

Status OperationRunner::begin_counts() {
  places_.find_none();
  counts_.begin(*operation_, domain_.members());
  ACCORD_ASSIGN_OR_RETURN(const PreparedPlan* const prepared, prepare(operation_->record, nullptr));
  start_cursor(*prepared, counts_.input(), counts_.output());
  algorithm_ = prepared->algorithm;
  begin_in(Stage::kCounts);
  return {};
}

Status OperationRunner::begin_data(const exec::RequestRecord& record, const plan::Extent* extent,
                                   PlanCache::Known* known) {
  if (record.root != 0 && record.collective == Collective::kSendRecv) [[unlikely]]
    return begin_message(record, operation_->input, operation_->output);
  const PreparedPlan* prepared = known == nullptr ? nullptr : plans_.find(*known);
  if (prepared == nullptr) {
    prepared = plans_.find(key_of(record, extent));
    if (prepared == nullptr) [[unlikely]] {
      ACCORD_ASSIGN_OR_RETURN(prepared, prepare(record, extent));
    }
    if (known != nullptr) *known = plans_.known(prepared);
  }
  start_cursor(*prepared, operation_->input, operation_->output);
  algorithm_ = prepared->algorithm;
  return {};
}

Status OperationRunner::begin_message(const exec::RequestRecord& record, const void* input, void* output) {
  exec::RequestRecord without_tag = record;
  without_tag.root = 0;
  ACCORD_ASSIGN_OR_RETURN(const PreparedPlan* const prepared, prepare(without_tag, nullptr));
  cursor_.start(domain_, prepared->plan, input, output, 1.0, places_.in_memory(), record.root);
  algorithm_ = prepared->algorithm;
  return {};
}

Result<const PreparedPlan*> OperationRunner::prepare(const exec::RequestRecord& record, const plan::Extent* extent) {
  const PlanKey key = key_of(record, extent);
  if (const PreparedPlan* const kept = plans_.find(key)) return kept;
  Result<const PreparedPlan*> prepared = plans_.prepare(key);
  return prepared.ok() ? prepared : prepared.status().with_context(where(record));
}

void OperationRunner::start_cursor(const PreparedPlan& prepared, const void* input, void* output) {
  if (!prepared.plan.reads) [[likely]]
    return cursor_.start(domain_, prepared.plan, input, output, operation_->factor, places_.in_windows());
  // This rank must not write to memory that peers still read. For a plan that needs input and output apart, they read
  // a copy.
  if (prepared.apart && input == output) {  // no other overlap passes check_call()
    const std::size_t bytes = bytes_of(*operation_) * static_cast<std::size_t>(domain_.members());
    input = places_.copy({static_cast<const std::byte*>(input), bytes});
  }
  cursor_.start(domain_, prepared.plan, input, output, operation_->factor, places_.in_memory(input, output));
}

exec::Progress OperationRunner::poll(exec::PollLimits limits) {
  if (stage_ == Stage::kRefused) return exec::Progress::kMismatch;
  const exec::Progress progress = cursor_.poll(limits);
  if (progress != exec::Progress::kDone) return progress;
  if (stage_ == Stage::kCounts) return continue_with_data();
  // A peer that has given up does not wait until its memory has been read.
  if (cursor_.plan().reads && !state_.healthy()) {
    move_to(Stage::kRefused);
    return exec::Progress::kMismatch;
  }
  return progress;
}

exec::Progress OperationRunner::continue_with_data() {
  const Result<std::size_t> longest = counts_.longest_part(*operation_, domain_.me());
  if (!longest.ok()) return refuse(longest.status().with_context(where(operation_->record)));
  exec::RequestRecord record = operation_->record;
  record.phase = exec::Phase::kUnequalParts;
  record.count = *longest;
  plan::Extent extent = *operation_->extent;
  extent.longest_part = *longest;
  const Status status = begin_data(record, &extent);
  if (!status.ok()) return refuse(status);
  move_to(Stage::kData);
  recorder_.chose(algorithm_);
  return exec::Progress::kPending;
}

exec::Progress OperationRunner::refuse(const Status& failure) {
  (void)state_.fail(failure);
  move_to(Stage::kRefused);
  return exec::Progress::kMismatch;
}

// A receiver's record of a round is only a guess until it has seen the sender's, so the receiver is the one that
// finds out whether they differ.
Status OperationRunner::find_mismatch() const {
  if (direction_ == Direction::kSend) return {};
  const bool receives = direction_ == Direction::kReceive;
  for (int m = 0; m < domain_.members(); ++m)
    if (const std::optional<Difference> found = find_difference(domain_, m);
        found && !(receives && found->mine.root != found->theirs.root))
      return mismatch(*found, where(found->mine), me(), rank_of(m));
  return {};
}

std::vector<Rank> OperationRunner::late_ranks() const {
  const int waited_for = cursor_.waiting_for();
  if (cursor_.at_gate()) return waited_for < 0 ? std::vector<Rank>() : std::vector<Rank>{rank_of(waited_for)};
  // A rank that waits for another one itself, in this round or the one before, is not late.
  const Clock::time_point since = Clock::now() - operation_->timeout / 2;
  std::set<Rank> late;
  for (int m = 0; m < domain_.members(); ++m) {
    std::uint64_t its_word = 0;
    exec::RequestRecord record;
    if (m != domain_.me() && !domain_.record_of(m, domain_.round(), &its_word, &record))
      late.insert(rank_of(domain_.last_waited_for(m, since)));
  }
  if (late.empty() && waited_for >= 0) late.insert(rank_of(domain_.last_waited_for(waited_for, since)));
  return {late.begin(), late.end()};
}

std::string OperationRunner::where(const exec::RequestRecord& record) const {
  if (record.collective != Collective::kSendRecv) return group_.where(exec::name_of(record));
  const bool sends = direction_ == Direction::kSend;
  const std::string tag = record.root == 0 ? "" : fmt::format(", tag {},", record.root);
  return group_.where(fmt::format("{} rank {}{}", sends ? "send to" : "recv from", rank_of(sends ? 1 : 0), tag));
}

}  // namespace accord::comm
