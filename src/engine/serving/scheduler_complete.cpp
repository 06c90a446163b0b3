// Completing a step: computed blocks are published, samples of one prompt fork, tokens are appended, and finished
// sequences are removed. A forked sample shares all blocks of the prompt; the first sequence that writes to the last
// of them copies it.
#include <fmt/format.h>

#include <algorithm>

#include "engine/serving/check_request.hpp"
#include "engine/serving/scheduler.hpp"

namespace accord::engine {

void Scheduler::advance(Sequence& sequence) {
  sequence.computed += sequence.planned;
  sequence.planned = 0;
  sequence.source_computed = true;
  if (sequence.remaining() == 0) release_slot(sequence);
  if (!shares_prefixes(sequence)) return;
  const std::int32_t length = pool_.block_tokens();
  for (; (sequence.published + 1) * length <= sequence.computed; ++sequence.published) {
    const auto index = static_cast<std::size_t>(sequence.published);
    const BlockId parent = index == 0 ? root_of(sequence.record->adapter) : sequence.table[index - 1];
    const auto tokens = std::span<const TokenId>(sequence.tokens)
                            .subspan(index * static_cast<std::size_t>(length), static_cast<std::size_t>(length));
    sequence.table[index] = pool_.publish(sequence.table[index], parent, tokens);
  }
}

// `draw`: the first one of the request; its other draws follow. Samples that find no place among the running sequences
// wait.
void Scheduler::fork(std::size_t draw) {
  const SequenceId first = drawn_[draw];
  at(first).forks = false;
  const int samples = at(first).record->request->samples;
  for (int sample = 1; sample < samples; ++sample) {
    const SequenceId made = new_sequence(at(first).id, *at(first).record, at(first).sample + sample);
    Sequence& sequence = at(made);
    drawn_[draw + static_cast<std::size_t>(sample)] = made;
    const bool runs = running_.size() < static_cast<std::size_t>(options_.limits.max_sequences);
    if (runs) {
      const Sequence& from = at(first);
      sequence.tokens.reserve(from.tokens.capacity());
      sequence.table.reserve(from.table.capacity());
      for (const BlockId block : from.table) pool_.hold(block);
      sequence.table.assign(from.table.begin(), from.table.end());
      for (const BlockId block : from.source_table) pool_.hold(block);
      sequence.source_table.assign(from.source_table.begin(), from.source_table.end());
      sequence.source_computed = true;
      sequence.computed = from.computed;
      sequence.published = from.published;
    }
    sequence.state = runs ? State::kRunning : State::kWaiting;
    insert(runs ? running_ : waiting_, made);
  }
}

std::optional<FinishReason> Scheduler::finished(const Sequence& sequence) const {
  const GenerationRequest& request = *sequence.record->request;
  const auto generated = std::span(sequence.tokens).subspan(first_generated(request));
  if (std::ranges::find(request.stop_tokens, generated.back()) != request.stop_tokens.end())
    return FinishReason::kStopToken;
  for (const auto& stop : request.stop_sequences)
    if (stop.size() <= generated.size() && std::ranges::equal(generated.last(stop.size()), stop))
      return FinishReason::kStopSequence;
  if (static_cast<int>(sequence.tokens.size() - request.prompt.size()) >= sequence.record->new_tokens)
    return FinishReason::kLength;
  return std::nullopt;
}

void Scheduler::append(SequenceId id, const SampledToken& sampled, Events& events) {
  Sequence& sequence = at(id);
  GenerationEvent event;
  event.request = sequence.id;
  event.sample = sequence.sample;
  event.index = static_cast<int>(sequence.tokens.size() - first_generated(*sequence.record->request));
  if (sampled.status.ok()) {
    sequence.tokens.push_back(sampled.token);
    event.token = sampled.token;
    event.logprob = sampled.logprob;
    event.top = sampled.top;
    event.finish = finished(sequence);
  } else {
    event.finish = FinishReason::kError;
    event.status = sampled.status.with_context(
        fmt::format("request {}, sample {}, token {}", event.request, event.sample, event.index));
  }
  const bool ends = event.finish.has_value();
  events.push_back(std::move(event));
  if (ends) end(id);
}

Status Scheduler::complete_step(std::span<const SampledToken> sampled, Events& events) {
  if (!step_planned_) return Status(StatusCode::kWrongState, "no step was planned");
  if (sampled.size() != draws_.size())
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("{} tokens were given for {} draws of the step", sampled.size(), draws_.size()));
  for (std::size_t i = 0; i < sampled.size(); ++i) {
    if (drawn_[i] < 0 || !sampled[i].status.ok()) continue;
    if (sampled[i].token < 0 || sampled[i].token >= options_.limits.vocabulary)
      return Status(StatusCode::kInvalidArgument,
                    fmt::format("token {} for request {} is outside the vocabulary of {} tokens", sampled[i].token,
                                draws_[i].request, options_.limits.vocabulary));
  }
  step_planned_ = false;
  for (const SequenceId id : planned_)
    if (id >= 0) advance(at(id));
  for (std::size_t i = 0; i < sampled.size(); ++i) {
    if (drawn_[i] < 0) continue;
    if (at(drawn_[i]).forks) fork(i);
    append(drawn_[i], sampled[i], events);
  }
  planned_.clear();
  drawn_.clear();
  draws_.clear();
  return Status();
}

}  // namespace accord::engine
