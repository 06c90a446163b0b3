// Requests are added and end, and sequences move between the queues. Both queues are sorted by turn, which never
// changes for a sequence. The blocks of a sequence are released last one first, as BlockPool requires.
#include "engine/serving/scheduler.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>
#include <utility>

#include "engine/serving/check_request.hpp"

namespace accord::engine {
namespace {

Status check_options(const SchedulerOptions& options) {
  const PlanLimits& limits = options.limits;
  const auto at_least = [](const char* name, std::int32_t value, std::int32_t min) {
    if (value >= min) return Status();
    return Status(StatusCode::kInvalidArgument, fmt::format("{}={}; expected {} or more", name, value, min));
  };
  ACCORD_RETURN_IF_ERROR(at_least("max_context", limits.max_context, 2));
  ACCORD_RETURN_IF_ERROR(at_least("vocabulary", limits.vocabulary, 1));
  ACCORD_RETURN_IF_ERROR(at_least("max_sequences", limits.max_sequences, 1));
  ACCORD_RETURN_IF_ERROR(at_least("max_requests", options.max_requests, 1));
  ACCORD_RETURN_IF_ERROR(at_least("aging_steps", options.aging_steps, 0));
  if (limits.max_rows < limits.max_sequences)
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("max_rows={} is less than max_sequences={}; each sequence needs a row in a step",
                              limits.max_rows, limits.max_sequences));
  return Status();
}

GenerationEvent end_event(RequestId id, int sample, int generated, FinishReason reason, const Status& status) {
  GenerationEvent event;
  event.request = id;
  event.sample = sample;
  event.index = generated;
  event.finish = reason;
  event.status = status;
  return event;
}

}  // namespace

Result<Scheduler> Scheduler::create(const SchedulerOptions& options) {
  ACCORD_RETURN_IF_ERROR(check_options(options));
  ACCORD_ASSIGN_OR_RETURN(auto pool, BlockPool::create({options.limits.blocks, options.limits.block_tokens}));
  return Scheduler(options, std::move(pool));
}

bool Scheduler::before(SequenceId a, SequenceId b) const {
  const Sequence& first = at(a);
  const Sequence& second = at(b);
  return std::tie(first.record->turn, first.id, first.sample) < std::tie(second.record->turn, second.id, second.sample);
}

void Scheduler::insert(std::vector<SequenceId>& queue, SequenceId id) {
  const auto place = std::upper_bound(queue.begin(), queue.end(), id,
                                      [&](SequenceId added, SequenceId other) { return before(added, other); });
  queue.insert(place, id);
}

Scheduler::SequenceId Scheduler::new_sequence(RequestId id, Record& record, int sample) {
  if (free_.empty()) {
    free_.push_back(static_cast<SequenceId>(sequences_.size()));
    sequences_.emplace_back();
  }
  const SequenceId made = free_.back();
  free_.pop_back();
  Sequence& sequence = at(made);
  sequence.id = id;
  sequence.record = &record;
  sequence.sample = sample;
  sequence.forks = false;
  sequence.tokens.assign(record.request->prompt.begin(), record.request->prompt.end());
  sequence.computed = sequence.published = sequence.planned = 0;
  ++record.live;
  return made;
}

Status Scheduler::submit(RequestId id, std::shared_ptr<const GenerationRequest> request, std::int32_t source_rows) {
  if (has_ids_ && id <= last_id_)
    return Status(StatusCode::kInvalidArgument, fmt::format("request {} was submitted after request {}; the number of "
                                                            "each request must be larger than all earlier ones",
                                                            id, last_id_));
  ACCORD_RETURN_IF_ERROR(check_request(*request, source_rows, options_.limits));
  if (records_.size() >= static_cast<std::size_t>(options_.max_requests))
    return Status(StatusCode::kResourceExhausted,
                  fmt::format("{} requests are running or waiting, which is the maximum", records_.size()));
  has_ids_ = true;
  last_id_ = id;
  Record& record = records_[id];
  record.turn = static_cast<std::int64_t>(stats_.steps) - std::int64_t{request->priority} * options_.aging_steps;
  record.new_tokens = new_token_limit(*request, source_rows, options_.limits);
  record.source_rows = source_rows;
  record.adapter = adapter_of(*request, options_.limits);
  record.request = std::move(request);
  const SequenceId made = new_sequence(id, record, record.request->first_sample);
  at(made).forks = record.request->samples > 1;
  at(made).state = State::kWaiting;
  insert(waiting_, made);
  return Status();
}

void Scheduler::release_blocks(Sequence& sequence) {
  for (auto block = sequence.table.rbegin(); block != sequence.table.rend(); ++block) pool_.release(*block);
  sequence.table.clear();
  for (const BlockId block : sequence.source_table) pool_.release(block);
  sequence.source_table.clear();
  sequence.source_computed = false;
  release_slot(sequence);
  sequence.computed = sequence.published = sequence.planned = 0;
}

void Scheduler::release_slot(Sequence& sequence) {
  if (sequence.source_slot == PlannedSequence::kNoSlot) return;
  slots_in_use_[static_cast<std::size_t>(sequence.source_slot)] = false;
  sequence.source_slot = PlannedSequence::kNoSlot;
}

void Scheduler::end(SequenceId id) {
  Sequence& sequence = at(id);
  std::erase(sequence.state == State::kRunning ? running_ : waiting_, id);
  std::ranges::replace(planned_, id, SequenceId{-1});
  std::ranges::replace(drawn_, id, SequenceId{-1});
  release_blocks(sequence);
  sequence.state = State::kFree;
  free_.push_back(id);
  if (--sequence.record->live == 0) records_.erase(sequence.id);
}

void Scheduler::preempt(SequenceId id) {
  std::erase(running_, id);
  release_blocks(at(id));
  at(id).state = State::kWaiting;
  insert(waiting_, id);
  ++stats_.preemptions;
}

void Scheduler::invalidate_cache() {
  while (!running_.empty()) preempt(running_.back());
  pool_.unpublish_all();
}

Status Scheduler::cancel(RequestId id, Events& events) {
  const auto found = records_.find(id);
  if (found == records_.end())
    return Status(StatusCode::kNotFound,
                  fmt::format("request {} does not exist: it has ended, or was never submitted", id));
  // The sequences of one request are adjacent in a queue.
  const auto key = [&](SequenceId sequence) { return std::pair(at(sequence).record->turn, at(sequence).id); };
  std::vector<SequenceId> ended;
  for (const auto* queue : {&running_, &waiting_}) {
    auto place = std::ranges::lower_bound(*queue, std::pair(found->second.turn, id), {}, key);
    for (; place != queue->end() && at(*place).id == id; ++place) ended.push_back(*place);
  }
  std::ranges::sort(ended, {}, [&](SequenceId other) { return at(other).sample; });
  const std::size_t first = first_generated(*found->second.request);
  for (const SequenceId other : ended) {
    const auto generated = static_cast<int>(at(other).tokens.size() - first);
    const int samples = at(other).forks ? found->second.request->samples : 1;
    for (int sample = at(other).sample; sample < at(other).sample + samples; ++sample)
      events.push_back(end_event(id, sample, generated, FinishReason::kCancelled, Status()));
  }
  for (const SequenceId other : ended) end(other);
  return Status();
}

void Scheduler::end_all(FinishReason reason, const Status& status, Events& events) {
  for (auto* queue : {&running_, &waiting_}) {
    for (const SequenceId id : *queue) {
      Sequence& sequence = at(id);
      const GenerationRequest& request = *sequence.record->request;
      const auto generated = static_cast<int>(sequence.tokens.size() - first_generated(request));
      for (int sample = sequence.sample; sample < sequence.sample + (sequence.forks ? request.samples : 1); ++sample)
        events.push_back(end_event(sequence.id, sample, generated, reason, status));
      release_blocks(sequence);
      sequence.state = State::kFree;
      free_.push_back(id);
    }
    queue->clear();
  }
  records_.clear();
  planned_.clear();
  drawn_.clear();
  draws_.clear();
  step_planned_ = false;
}

DrawInput Scheduler::draw_input(std::size_t index) const {
  const SequenceId id = drawn_[index];
  if (id < 0) return {};
  const Sequence& sequence = at(id);
  const GenerationRequest& request = *sequence.record->request;
  return {&request, std::span(sequence.tokens).subspan(first_generated(request)), draws_[index].sample};
}

GenerationStats Scheduler::stats() const {
  GenerationStats stats = stats_;
  stats.requests = static_cast<std::int32_t>(records_.size());
  stats.waiting = static_cast<std::int32_t>(waiting_.size());
  stats.running = static_cast<std::int32_t>(running_.size());
  stats.blocks = pool_.blocks();
  stats.available_blocks = pool_.available();
  return stats;
}

Status Scheduler::check() const {
  ACCORD_RETURN_IF_ERROR(pool_.check());
  const auto request_error = [](RequestId id, const char* what) {
    return Status(StatusCode::kInternal, fmt::format("request {} {}", id, what));
  };
  std::vector<std::int32_t> holders(static_cast<std::size_t>(pool_.blocks()), 0);
  std::vector<bool> slots_in_use(slots_in_use_.size(), false);
  std::map<RequestId, int> live;
  for (const auto* queue : {&running_, &waiting_}) {
    const State expected = queue == &running_ ? State::kRunning : State::kWaiting;
    for (const SequenceId id : *queue) {
      const Sequence& sequence = at(id);
      ++live[sequence.id];
      if (sequence.state != expected) return request_error(sequence.id, "is in the wrong queue");
      const bool has_slot = sequence.source_slot != PlannedSequence::kNoSlot;
      if (expected == State::kWaiting && !(sequence.table.empty() && sequence.source_table.empty() && !has_slot))
        return request_error(sequence.id, "is waiting but holds blocks or a slot");
      if (has_slot && slots_in_use[static_cast<std::size_t>(sequence.source_slot)])
        return request_error(sequence.id, "has the slot of another sequence");
      if (has_slot) slots_in_use[static_cast<std::size_t>(sequence.source_slot)] = true;
      if (pool_.blocks_for(sequence.computed) > static_cast<std::int32_t>(sequence.table.size()))
        return request_error(sequence.id, "computed more tokens than its blocks hold");
      for (const auto* table : {&sequence.table, &sequence.source_table})
        for (const BlockId block : *table) ++holders[static_cast<std::size_t>(block)];
    }
    if (!std::ranges::is_sorted(*queue, [&](SequenceId a, SequenceId b) { return before(a, b); }))
      return Status(StatusCode::kInternal, "a queue is not sorted by turn");
  }
  for (BlockId block = 0; block < pool_.blocks(); ++block) {
    if (holders[static_cast<std::size_t>(block)] != pool_.holders(block))
      return Status(StatusCode::kInternal, fmt::format("block {} is held {} times, but counts {} holders", block,
                                                       holders[static_cast<std::size_t>(block)], pool_.holders(block)));
  }
  if (slots_in_use != slots_in_use_) return Status(StatusCode::kInternal, "a slot of sources is lost");
  for (const auto& [id, record] : records_)
    if (live[id] != record.live) return request_error(id, "has lost a sample");
  return Status();
}

}  // namespace accord::engine
