#pragma once
// A model without weights. Its logits are a hash of the tokens that it finds through the block table in its paged
// cache, so that any error in tables, positions, copies or reuse changes the answer. And its unbatched twin,
// without a cache.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "engine/serving/sampler.hpp"
#include "engine/serving/step_model.hpp"

namespace accord::engine::testing {

inline std::uint64_t mix(std::uint64_t value) {  // splitmix64
  value += 0x9E3779B97F4A7C15;
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EB;
  return value ^ (value >> 31);
}

inline std::uint64_t hash_step(std::uint64_t hash, TokenId token, std::int32_t position) {
  return mix(hash ^ (static_cast<std::uint64_t>(token) << 32 | static_cast<std::uint32_t>(position)));
}

inline void toy_logits(std::uint64_t hash, std::span<float> logits) {
  for (std::size_t i = 0; i < logits.size(); ++i) logits[i] = static_cast<float>(mix(hash + i) % 4096) / 512.0F;
}

class ToyModel final : public StepModel {
 public:
  explicit ToyModel(const PlanLimits& limits)
      : limits_(limits),
        cache_(static_cast<std::size_t>(limits.blocks) * static_cast<std::size_t>(limits.block_tokens)) {}

  const PlanLimits& limits() const override { return limits_; }

  Status run(const StepPlan& plan) override {
    ACCORD_RETURN_IF_ERROR(check_plan(plan, limits_));
    if (before_run) ACCORD_RETURN_IF_ERROR(before_run(plan));
    const auto length = static_cast<std::size_t>(limits_.block_tokens);
    for (const BlockCopy& copy : plan.copies) {
      for (std::size_t i = 0; i < length; ++i) {
        Cell& to = cache_[static_cast<std::size_t>(copy.to) * length + i];
        to = cache_[static_cast<std::size_t>(copy.from) * length + i];
      }
    }
    ++steps_;
    for (const PlannedSequence& sequence : plan.sequences) {
      for (std::int32_t row = sequence.first_row; row < sequence.first_row + sequence.rows; ++row) {
        const auto index = static_cast<std::size_t>(row);
        Cell& cell = cell_at(plan.table(sequence), plan.positions[index]);
        if (cell.step == steps_) return Status(StatusCode::kInternal, "two rows wrote one cell");
        cell = {plan.tokens[index], plan.positions[index], steps_};
      }
    }
    std::size_t wanted = 0;
    hashes_.clear();
    for (const PlannedSequence& sequence : plan.sequences) {
      for (; wanted < plan.logit_rows.size() && plan.logit_rows[wanted] < sequence.first_row + sequence.rows;
           ++wanted) {
        const std::int32_t last = plan.positions[static_cast<std::size_t>(plan.logit_rows[wanted])];
        std::uint64_t hash = 0;
        for (std::int32_t position = 0; position <= last; ++position) {
          const Cell& cell = cell_at(plan.table(sequence), position);
          hash = hash_step(hash, cell.token, cell.position);
        }
        digest_ = mix(digest_ ^ hash);
        hashes_.push_back(hash);
      }
    }
    spoils_ = spoiled && spoiled(plan);
    return Status();
  }

  Status read_logits(std::size_t first, std::span<float> logits) override {
    const auto vocabulary = static_cast<std::size_t>(limits_.vocabulary);
    for (std::size_t row = 0; row < logits.size() / vocabulary; ++row)
      toy_logits(hashes_[first + row], logits.subspan(row * vocabulary, vocabulary));
    if (spoils_) logits[9] = std::nanf("");
    return Status();
  }

  /// Returns a digest of everything that was computed, in order.
  std::uint64_t digest() const { return digest_; }
  /// Called before each run; may fail the step.
  std::function<Status(const StepPlan&)> before_run;
  /// Returns whether a step's logits have a NaN, for token 9 of the first row that is read.
  std::function<bool(const StepPlan&)> spoiled;

 private:
  struct Cell {
    TokenId token = -1;
    std::int32_t position = -1;
    std::uint64_t step = 0;
  };
  Cell& cell_at(std::span<const BlockId> table, std::int32_t position) {
    const auto place = static_cast<std::size_t>(position);
    const auto length = static_cast<std::size_t>(limits_.block_tokens);
    return cache_[static_cast<std::size_t>(table[place / length]) * length + place % length];
  }

  PlanLimits limits_;
  std::vector<Cell> cache_;
  std::uint64_t steps_ = 0;
  std::uint64_t digest_ = 0;
  std::vector<std::uint64_t> hashes_;  // of the rows whose logits are needed
  bool spoils_ = false;
};

/// Returns the expected answer of one sample: one token after the other, each from the whole sequence.
inline std::vector<TokenId> toy_answer(const GenerationRequest& request, int sample, const PlanLimits& limits) {
  Sampler sampler(limits.vocabulary);
  std::vector<TokenId> tokens = request.prompt;
  std::vector<float> logits(static_cast<std::size_t>(limits.vocabulary));
  const std::size_t most = request.prompt.size() + static_cast<std::size_t>(*request.max_new_tokens);
  while (tokens.size() < most) {
    std::uint64_t hash = 0;
    for (std::size_t i = 0; i < tokens.size(); ++i) hash = hash_step(hash, tokens[i], static_cast<std::int32_t>(i));
    toy_logits(hash, logits);
    const auto generated = std::span<const TokenId>(tokens).subspan(request.prompt.size());
    const TokenId next = sampler.sample(logits, {&request, generated, sample}).token;
    tokens.push_back(next);
    if (std::find(request.stop_tokens.begin(), request.stop_tokens.end(), next) != request.stop_tokens.end()) break;
    bool stops = false;
    for (const auto& stop : request.stop_sequences)
      stops |= tokens.size() - request.prompt.size() >= stop.size() &&
               std::equal(stop.begin(), stop.end(), tokens.end() - static_cast<std::ptrdiff_t>(stop.size()));
    if (stops) break;
  }
  return {tokens.begin() + static_cast<std::ptrdiff_t>(request.prompt.size()), tokens.end()};
}

}  // namespace accord::engine::testing
