#pragma once
// Random requests, their answers, and a check of the answers.

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "unit/engine/serving/toy_model.hpp"

namespace accord::engine::testing {

/// Returns a request for a vocabulary of 32 and a context of 40 tokens.
inline GenerationRequest random_request(std::mt19937& random) {
  const auto chance = [&](unsigned of) { return random() % of == 0; };
  GenerationRequest request;
  const std::size_t length = 1 + random() % 20;
  // Few different beginnings, so that many prompts share blocks.
  const auto beginning = static_cast<TokenId>(random() % 3);
  for (std::size_t i = 0; i < length; ++i)
    request.prompt.push_back(i < 10 ? (beginning + static_cast<TokenId>(i)) % 32 : static_cast<TokenId>(random() % 32));
  request.max_new_tokens = 1 + static_cast<int>(random() % 12);
  request.priority = static_cast<int>(random() % 3) - 1;
  if (chance(4)) request.samples = 2 + static_cast<int>(random() % 6);
  if (chance(2)) request.sampling = {.temperature = 1, .top_k = static_cast<int>(random() % 9), .top_p = 0.9F};
  request.sampling.seed = random();
  if (chance(5)) request.sampling.repetition_penalty = 1.3F;
  if (chance(3)) request.stop_tokens = {static_cast<TokenId>(random() % 32)};
  if (chance(3)) request.stop_sequences = {{static_cast<TokenId>(random() % 32)}, {1, 2}};
  if (chance(6)) request.logprobs = 2;
  return request;
}

/// The answer to one request, by sample.
struct Answer {
  GenerationRequest request;
  std::vector<std::vector<TokenId>> tokens;
  std::vector<std::optional<FinishReason>> ends;

  explicit Answer(GenerationRequest submitted = {})
      : request(std::move(submitted)),
        tokens(static_cast<std::size_t>(request.samples)),
        ends(static_cast<std::size_t>(request.samples)) {}

  bool complete() const {
    return std::ranges::all_of(ends, [](const auto& end) { return end.has_value(); });
  }
  void add(const GenerationEvent& event) {
    const auto sample = static_cast<std::size_t>(event.sample);
    ASSERT_FALSE(ends[sample].has_value());
    if (event.token) {
      ASSERT_EQ(static_cast<std::size_t>(event.index), tokens[sample].size());
      tokens[sample].push_back(*event.token);
      ASSERT_EQ(event.top.size(), request.logprobs ? 2U : 0U);
    }
    ends[sample] = event.finish;
  }
};

/// Expects that each sample equals the one of a separate run, or its beginning if the sample was cancelled.
inline void expect_correct(const Answer& answer, const PlanLimits& limits) {
  for (std::size_t sample = 0; sample < answer.tokens.size(); ++sample) {
    const std::vector<TokenId> expected = toy_answer(answer.request, static_cast<int>(sample), limits);
    ASSERT_TRUE(answer.ends[sample].has_value());
    const auto& tokens = answer.tokens[sample];
    if (*answer.ends[sample] == FinishReason::kCancelled) {
      ASSERT_LE(tokens.size(), expected.size());
      ASSERT_TRUE(std::equal(tokens.begin(), tokens.end(), expected.begin()));
      continue;
    }
    ASSERT_EQ(tokens, expected);
    ASSERT_NE(*answer.ends[sample], FinishReason::kError);
  }
}

}  // namespace accord::engine::testing
