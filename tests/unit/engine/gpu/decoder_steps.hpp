#pragma once
// Steps of a TinyDecoder over its paged cache.

#include <utility>

#include "unit/engine/gpu/models.hpp"

namespace accord::engine {

/// A step of a language model: its rows, and the sequences to which they belong.
struct DecoderStep {
  std::vector<std::int64_t> ids, positions, rows;
  std::vector<SequenceRows> sequences;
};

// A prompt of 5 tokens; a prompt of 20 with the first sequence's next token; then three steps with one token of each.
inline std::vector<DecoderStep> some_steps() {
  static const std::vector<std::int32_t> first = {3, 1}, second = {0, 5};
  std::vector<DecoderStep> steps;
  DecoderStep step;
  const auto add = [&](std::int64_t count, std::int64_t context, const std::vector<std::int32_t>& blocks) {
    for (std::int64_t i = 0; i < count; ++i) {
      step.ids.push_back((context + i) * 7 % TinyDecoder::kVocabulary);
      step.positions.push_back(context + i);
    }
    step.rows.push_back(static_cast<std::int64_t>(step.ids.size()) - 1);
    step.sequences.push_back({count, context, blocks});
  };
  const auto end = [&] { steps.push_back(std::exchange(step, {})); };
  add(5, 0, first);
  end();
  add(1, 5, first);
  add(20, 0, second);
  end();
  for (std::int64_t i = 0; i < 3; ++i) {
    add(1, 6 + i, first);
    add(1, 20 + i, second);
    end();
  }
  return steps;
}

// Returns the logits of all steps, one after the other.
inline std::vector<float> run_steps(Engine& engine, DType cache) {
  std::vector<float> logits;
  Result<EngineContext> context = engine.create_context();
  EXPECT_TRUE(context.ok());
  const Status made = context->create_cache({.blocks = 6, .block_tokens = 16, .dtype = cache});
  EXPECT_TRUE(made.ok()) << made.to_string();
  for (const DecoderStep& step : some_steps()) {
    const auto count = static_cast<std::int64_t>(step.ids.size()), rows = static_cast<std::int64_t>(step.rows.size());
    std::vector<accord::testing::HostTensor> inputs = {
        whole_numbers({count}, step.ids), whole_numbers({count}, step.positions), whole_numbers({rows}, step.rows)};
    const Result<std::vector<TensorView>> outputs = context->run(views_of(inputs), step.sequences);
    EXPECT_TRUE(outputs.ok()) << outputs.status().to_string();
    if (!outputs.ok()) return logits;
    const std::vector<float> these = accord::testing::floats_of((*outputs)[0]);
    logits.insert(logits.end(), these.begin(), these.end());
  }
  return logits;
}

}  // namespace accord::engine
