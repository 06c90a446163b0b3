// Planning a step: 1. A waiting sequence that precedes running ones of lower priority takes their blocks, if those are
// enough for it. 2. Running sequences, by turn: each decoding one gets a row, prompts get chunks of the rest of
// max_rows, and a sequence that lacks a block takes it from the last in turn. 3. If no sequence lost its blocks,
// waiting sequences are admitted by turn as long as they fit. An admitted sequence gets the blocks for all its tokens
// at once, so only decoding ever lacks one.
#include <algorithm>

#include "engine/serving/scheduler.hpp"

namespace accord::engine {

std::int32_t Scheduler::blocks_needed(const Sequence& sequence, std::int32_t rows) const {
  const auto has = static_cast<std::int32_t>(sequence.table.size());
  return std::max(0, pool_.blocks_for(sequence.computed + rows) - has) + (writes_to_shared_block(sequence) ? 1 : 0);
}

bool Scheduler::writes_to_shared_block(const Sequence& sequence) const {
  if (sequence.computed % pool_.block_tokens() == 0) return false;
  return pool_.holders(sequence.table[static_cast<std::size_t>(sequence.computed / pool_.block_tokens())]) > 1;
}

void Scheduler::grow(Sequence& sequence, std::int32_t rows, std::vector<BlockCopy>& copies) {
  if (writes_to_shared_block(sequence)) {
    BlockId& last = sequence.table[static_cast<std::size_t>(sequence.computed / pool_.block_tokens())];
    const BlockId own = pool_.allocate();
    copies.push_back({last, own});
    pool_.release(last);
    last = own;
  }
  const std::int32_t needed = pool_.blocks_for(sequence.computed + rows);
  while (static_cast<std::int32_t>(sequence.table.size()) < needed) sequence.table.push_back(pool_.allocate());
}

std::int32_t Scheduler::source_blocks(const Sequence& sequence) const {
  return options_.limits.source_token ? 0 : pool_.blocks_for(sequence.record->source_rows);
}

// Slots are taken from the lowest on, because each keeps memory for the largest source that was in it.
std::int32_t Scheduler::free_slot() const {
  return static_cast<std::int32_t>(std::ranges::find(slots_in_use_, false) - slots_in_use_.begin());
}

// Finds reusable blocks (reusable_blocks_) and returns how many available blocks it would take to admit the sequence.
// At least one token must be computed, for its logits.
std::int32_t Scheduler::admission_blocks(const Sequence& sequence) {
  reusable_blocks_.clear();
  if (shares_prefixes(sequence)) {
    const auto earlier = std::span(sequence.tokens).first(sequence.tokens.size() - 1);
    pool_.find(root_of(sequence.record->adapter), earlier, reusable_blocks_);
  }
  const auto kept = std::ranges::count_if(reusable_blocks_, [&](BlockId block) { return pool_.holders(block) == 0; });
  return source_blocks(sequence) + pool_.blocks_for(static_cast<std::int64_t>(sequence.tokens.size())) -
         static_cast<std::int32_t>(reusable_blocks_.size()) + static_cast<std::int32_t>(kept);
}

// Leaves one block for each running sequence, so that none loses its blocks in the next step.
bool Scheduler::fits(std::int32_t blocks, std::int32_t available, std::size_t running) const {
  return running < static_cast<std::size_t>(options_.limits.max_sequences) &&
         available >= blocks + static_cast<std::int32_t>(running);
}

void Scheduler::make_room() {
  if (waiting_.empty()) return;
  const SequenceId first = waiting_.front();
  const std::int32_t blocks = admission_blocks(at(first));
  const auto yields = [&](SequenceId other) {
    return at(other).record->request->priority < at(first).record->request->priority && before(first, other);
  };
  const auto blocks_of = [](const Sequence& sequence) {
    return static_cast<std::int32_t>(sequence.table.size() + sequence.source_table.size());
  };
  std::int32_t available = pool_.available();
  std::size_t stay = running_.size();
  while (!fits(blocks, available, stay) && stay > 0 && yields(running_[stay - 1]))
    available += blocks_of(at(running_[--stay]));
  if (!fits(blocks, available, stay)) return;
  while (running_.size() > stay) preempt(running_.back());
}

bool Scheduler::plan_running(std::int32_t budget, StepPlan& plan) {
  const std::uint64_t preemptions = stats_.preemptions;
  for (std::size_t i = 0; i < running_.size(); ++i) {
    Sequence& sequence = at(running_[i]);
    const bool decodes = sequence.remaining() == 1;
    const std::int32_t rows = decodes ? 1 : std::min(sequence.remaining(), budget);
    if (rows == 0) continue;
    const auto lacks = [&] { return pool_.available() < blocks_needed(sequence, rows); };
    while (lacks() && running_.size() > i + 1) preempt(running_.back());
    if (lacks()) {
      preempt(running_[i]);
      break;
    }
    grow(sequence, rows, plan.copies);
    sequence.planned = rows;
    planned_.push_back(running_[i]);
    if (!decodes) budget -= rows;
  }
  left_rows_ = budget;
  return stats_.preemptions != preemptions;
}

void Scheduler::admit(StepPlan& plan) {
  while (!waiting_.empty() && left_rows_ > 0) {
    const SequenceId first = waiting_.front();
    Sequence& sequence = at(first);
    if (!fits(admission_blocks(sequence), pool_.available(), running_.size())) return;
    const std::int32_t source_rows = sequence.record->source_rows;
    if (new_source_rows_ > 0 && new_source_rows_ + source_rows > options_.limits.max_rows) return;
    new_source_rows_ += source_rows;
    waiting_.erase(waiting_.begin());
    const std::size_t max_tokens =
        sequence.record->request->prompt.size() + static_cast<std::size_t>(sequence.record->new_tokens);
    sequence.tokens.reserve(max_tokens);
    sequence.table.reserve(static_cast<std::size_t>(pool_.blocks_for(static_cast<std::int64_t>(max_tokens))));
    for (const BlockId block : reusable_blocks_) pool_.hold(block);
    sequence.table.assign(reusable_blocks_.begin(), reusable_blocks_.end());
    sequence.published = static_cast<std::int32_t>(reusable_blocks_.size());
    sequence.computed = sequence.published * pool_.block_tokens();
    stats_.reused_tokens += static_cast<std::uint64_t>(sequence.computed);
    sequence.planned = std::min(sequence.remaining(), left_rows_);
    left_rows_ -= sequence.planned;
    grow(sequence, sequence.remaining(), plan.copies);
    const auto needed = static_cast<std::size_t>(source_blocks(sequence));
    while (sequence.source_table.size() < needed) sequence.source_table.push_back(pool_.allocate());
    if (options_.limits.source_token && source_rows > 0) {
      sequence.source_slot = free_slot();
      slots_in_use_[static_cast<std::size_t>(sequence.source_slot)] = true;
    }
    sequence.state = State::kRunning;
    insert(running_, first);
    planned_.push_back(first);
  }
}

void Scheduler::write_sequence(SequenceId id, StepPlan& plan) {
  const Sequence& sequence = at(id);
  const std::int32_t after = sequence.computed + sequence.planned;
  const std::int32_t blocks = pool_.blocks_for(after);
  const std::optional<TokenId>& source_token = options_.limits.source_token;
  const bool has_slot = sequence.source_slot != PlannedSequence::kNoSlot;
  const std::int32_t source_rows = !source_token || has_slot ? sequence.record->source_rows : 0;
  if (source_rows > 0 && !sequence.source_computed) {
    const auto& request = sequence.record->request;
    plan.sources.push_back({static_cast<std::int32_t>(plan.sequences.size()), {request, &request->source}});
  }
  const auto earlier = std::span(sequence.tokens).first(static_cast<std::size_t>(sequence.computed));
  const std::int64_t taken = has_slot ? std::ranges::count(earlier, *source_token) : 0;
  plan.sequences.push_back({static_cast<std::int32_t>(plan.tokens.size()), sequence.planned, sequence.computed,
                            static_cast<std::int32_t>(plan.blocks.size()), blocks, source_rows, sequence.source_slot,
                            std::min(static_cast<std::int32_t>(taken), source_rows), sequence.record->adapter});
  for (std::int32_t position = sequence.computed; position < after; ++position) {
    plan.tokens.push_back(sequence.tokens[static_cast<std::size_t>(position)]);
    plan.positions.push_back(position);
  }
  plan.blocks.insert(plan.blocks.end(), sequence.table.begin(), sequence.table.begin() + blocks);
  plan.blocks.insert(plan.blocks.end(), sequence.source_table.begin(), sequence.source_table.end());
  if (after < static_cast<std::int32_t>(sequence.tokens.size())) return;
  const auto logits = static_cast<std::int32_t>(plan.logit_rows.size());
  plan.logit_rows.push_back(static_cast<std::int32_t>(plan.tokens.size()) - 1);
  const int samples = sequence.forks ? sequence.record->request->samples : 1;
  for (int sample = sequence.sample; sample < sequence.sample + samples; ++sample) {
    draws_.push_back({sequence.id, sample, logits});
    drawn_.push_back(id);
  }
}

Status Scheduler::plan_step(StepPlan& plan) {
  if (step_planned_)
    return Status(StatusCode::kWrongState,
                  "a step was planned but not completed; complete it before planning the next one");
  plan.clear();
  plan.block_tokens = pool_.block_tokens();
  planned_.clear();
  draws_.clear();
  drawn_.clear();
  new_source_rows_ = 0;
  make_room();
  const auto decoding = std::ranges::count_if(running_, [&](SequenceId id) { return at(id).remaining() == 1; });
  if (!plan_running(options_.limits.max_rows - static_cast<std::int32_t>(decoding), plan)) admit(plan);
  if (planned_.empty()) return Status();
  for (const SequenceId id : planned_)
    if (at(id).planned == 1) write_sequence(id, plan);
  for (const SequenceId id : planned_)
    if (at(id).planned > 1) write_sequence(id, plan);
  plan.step = ++stats_.steps;
  stats_.computed_tokens += plan.tokens.size();
  step_planned_ = true;
  return Status();
}

}  // namespace accord::engine
