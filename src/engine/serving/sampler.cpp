// 1. Mask, biases and penalties, if any, are applied to a copy of the row. 2. With temperature 0, the best token is
// the result. 3. top_k leaves a short list of tokens; without it, all tokens remain. 4. Their weights are whole
// numbers; top_p and min_p determine the least weight that is kept. 5. A random number selects one of the remaining
// tokens.
#include "engine/serving/sampler.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "engine/serving/check_request.hpp"
#include "engine/serving/philox.hpp"

namespace accord::engine {

namespace {

bool has_penalties(const SamplingOptions& sampling) {
  return sampling.repetition_penalty != 1 || sampling.presence_penalty != 0 || sampling.frequency_penalty != 0;
}

bool changes_logits(const SamplingOptions& sampling) {
  return sampling.mask != nullptr || !sampling.biases.empty() || has_penalties(sampling);
}

// Returns the least weight that min_p keeps, at least 1: some weight is always that large.
std::uint32_t min_weight_of(const SamplingOptions& sampling) {
  const auto relative = std::ceil(static_cast<double>(sampling.min_p) * TokenWeights::kOne);
  return std::max(std::uint32_t{1}, static_cast<std::uint32_t>(relative));
}

std::uint64_t random_of(const DrawInput& input) {
  const std::uint64_t seed = input.request->sampling.seed;
  const auto position = static_cast<std::uint32_t>(first_generated(*input.request) + input.generated.size());
  const PhiloxCounter random = philox({position, static_cast<std::uint32_t>(input.sample), 0, 0},
                                      {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)});
  return std::uint64_t{random[1]} << 32 | random[0];
}

}  // namespace

std::optional<TokenChoice> Sampler::choice(const DrawInput& input, std::int64_t row) {
  const SamplingOptions& sampling = input.request->sampling;
  if (changes_logits(sampling) || input.request->logprobs) return std::nullopt;
  TokenChoice choice;
  choice.row = row;
  choice.temperature = sampling.temperature;
  choice.top_k = sampling.top_k;
  choice.top_p = sampling.top_p;
  choice.min_weight = min_weight_of(sampling);
  choice.random = random_of(input);
  return choice;
}

Sampler::Sampler(std::int32_t vocabulary) : counts_(static_cast<std::size_t>(vocabulary), 0) {}

Status Sampler::apply_mask(const TokenMask& mask, const DrawInput& input) {
  allowed_.assign((adjusted_.size() + 63) / 64, ~std::uint64_t{0});
  ACCORD_RETURN_IF_ERROR(mask.restrict(input.sample, input.generated, allowed_));
  constexpr float kForbidden = -std::numeric_limits<float>::infinity();
  for (std::size_t word = 0; word < allowed_.size(); ++word) {
    const std::span<float> logits =
        std::span(adjusted_).subspan(word * 64, std::min<std::size_t>(64, adjusted_.size() - word * 64));
    if (allowed_[word] == 0) {
      std::ranges::fill(logits, kForbidden);
    } else if (~allowed_[word] != 0) {
      for (std::size_t bit = 0; bit < logits.size(); ++bit)
        if ((allowed_[word] >> bit & 1) == 0) logits[bit] = kForbidden;
    }
  }
  return Status();
}

void Sampler::apply_penalties(const DrawInput& input) {
  const SamplingOptions& sampling = input.request->sampling;
  const auto count = [&](TokenId token, int times) {
    std::int32_t& entry = counts_[static_cast<std::size_t>(token)];
    if (entry == 0) {
      entry = 1;
      counted_tokens_.push_back(token);
    }
    entry += times;
  };
  counted_tokens_.clear();
  if (sampling.repetition_penalty != 1)
    for (const TokenId token : input.request->prompt) count(token, 0);
  for (const TokenId token : input.generated) count(token, 1);
  for (const TokenId token : counted_tokens_) {
    float& logit = adjusted_[static_cast<std::size_t>(token)];
    const int times = counts_[static_cast<std::size_t>(token)] - 1;
    logit = logit < 0 ? logit * sampling.repetition_penalty : logit / sampling.repetition_penalty;
    logit -= sampling.frequency_penalty * static_cast<float>(times);
    if (times > 0) logit -= sampling.presence_penalty;
    counts_[static_cast<std::size_t>(token)] = 0;
  }
}

Result<std::span<const float>> Sampler::adjust(std::span<const float> logits, const DrawInput& input) {
  const SamplingOptions& sampling = input.request->sampling;
  if (!changes_logits(sampling)) return logits;
  adjusted_.assign(logits.begin(), logits.end());
  if (sampling.mask != nullptr) ACCORD_RETURN_IF_ERROR(apply_mask(*sampling.mask, input));
  for (const LogitBias& bias : sampling.biases) adjusted_[static_cast<std::size_t>(bias.token)] += bias.bias;
  if (has_penalties(sampling)) apply_penalties(input);
  return std::span<const float>(adjusted_);
}

// Sets weights_ and returns the least weight that is kept. `row` is the one in row_.
std::uint32_t Sampler::weigh(std::span<const float> row, const SamplingOptions& sampling) {
  listed_ = sampling.top_k > 0 && static_cast<std::size_t>(sampling.top_k) < row.size();
  if (listed_) {
    row_.collect(row_.kth_largest(static_cast<std::size_t>(sampling.top_k)), tokens_);
    values_.clear();
    for (const TokenId token : tokens_) values_.push_back(row[static_cast<std::size_t>(token)]);
  }
  weights_.set(listed_ ? std::span<const float>(values_) : row, row_.best(), sampling.temperature);
  const std::uint32_t min_weight = min_weight_of(sampling);
  return sampling.top_p < 1 ? std::max(min_weight, weights_.nucleus(static_cast<double>(sampling.top_p))) : min_weight;
}

void Sampler::add_logprobs(std::span<const float> logits, int top, SampledToken& sampled) {
  // The sampled row may have been adjusted, so row_ is set again; that also checks these logits.
  if (Status status = row_.set(logits); !status.ok()) {
    sampled.status = std::move(status);
    return;
  }
  const double sum = log_sum_exp(logits, row_.best());
  const auto logprob = [&](TokenId token) {
    return static_cast<float>(static_cast<double>(logits[static_cast<std::size_t>(token)]) - sum);
  };
  sampled.logprob = logprob(sampled.token);
  if (top == 0) return;
  const auto count = static_cast<std::size_t>(top);
  row_.collect(row_.kth_largest(count), tokens_);
  std::ranges::stable_sort(tokens_, [&](TokenId a, TokenId b) {
    return logits[static_cast<std::size_t>(a)] > logits[static_cast<std::size_t>(b)];
  });
  for (std::size_t i = 0; i < count; ++i) sampled.top.push_back({tokens_[i], logprob(tokens_[i])});
}

SampledToken Sampler::sample(std::span<const float> logits, const DrawInput& input) {
  SampledToken sampled;
  const SamplingOptions& sampling = input.request->sampling;
  auto row = adjust(logits, input);
  sampled.status = row.ok() ? row_.set(*row) : row.status();
  if (!sampled.status.ok()) return sampled;
  if (sampling.temperature == 0) {
    sampled.token = row_.best_token();
  } else {
    const std::uint32_t min_weight = weigh(*row, sampling);
    sampled.token = token_at(weights_.draw(random_of(input), min_weight));
  }
  if (input.request->logprobs) add_logprobs(logits, *input.request->logprobs, sampled);
  return sampled;
}

Result<std::vector<std::pair<TokenId, double>>> Sampler::distribution(std::span<const float> logits,
                                                                      const DrawInput& input) {
  ACCORD_ASSIGN_OR_RETURN(const auto row, adjust(logits, input));
  ACCORD_RETURN_IF_ERROR(row_.set(row));
  std::vector<std::pair<TokenId, double>> kept;
  if (input.request->sampling.temperature == 0) {
    kept.emplace_back(row_.best_token(), 1.0);
    return kept;
  }
  const std::uint32_t min_weight = weigh(row, input.request->sampling);
  const auto total = static_cast<double>(weights_.mass(min_weight));
  for (std::size_t i = 0; i < weights_.weights().size(); ++i) {
    const std::uint32_t weight = weights_.weights()[i];
    if (weight >= min_weight) kept.emplace_back(token_at(i), static_cast<double>(weight) / total);
  }
  return kept;
}

}  // namespace accord::engine
