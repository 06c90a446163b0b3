#pragma once
// Samples the next token from a row of logits.

#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "accord/generation.hpp"
#include "engine/program/token_choice.hpp"
#include "engine/serving/logits_row.hpp"
#include "engine/serving/scheduler.hpp"
#include "engine/serving/token_weights.hpp"

namespace accord::engine {

/// Samples tokens of one vocabulary and reuses its memory from row to row. One thread at a time: use one sampler per
/// thread.
///
/// The token is a function of the logits, the request, the tokens generated so far and the number of the sample, and
/// of nothing else; it is the same on every machine. Its random number is Philox4x32-10 of (seed; position of the
/// token, sample). Tokens with logits of -inf cannot be chosen; a NaN or +inf is an error, never a token. Of equal
/// logits, the lowest token is the best.
class Sampler {
 public:
  explicit Sampler(std::int32_t vocabulary);

  /// Returns the parameters with which sample() would choose a token from row `row`, for a caller whose logits are
  /// elsewhere. Returns nullopt if the request changes the logits (mask, biases, penalties) or asks for logprobs.
  static std::optional<TokenChoice> choice(const DrawInput& input, std::int64_t row);

  /// `logits`: one for each token. Instead of a token, the result has a status: kCorrupt if logits are not numbers,
  /// kInvalidArgument if no token is allowed. Cost for 128k tokens, 0.5 MB: see docs/decisions/language-models.md.
  SampledToken sample(std::span<const float> logits, const DrawInput& input);

  /// Returns the distribution that sample() draws from, by token, ascending. For tests and tools.
  Result<std::vector<std::pair<TokenId, double>>> distribution(std::span<const float> logits, const DrawInput& input);

 private:
  Result<std::span<const float>> adjust(std::span<const float> logits, const DrawInput& input);
  Status apply_mask(const TokenMask& mask, const DrawInput& input);
  void apply_penalties(const DrawInput& input);
  std::uint32_t weigh(std::span<const float> row, const SamplingOptions& sampling);
  TokenId token_at(std::size_t index) const { return listed_ ? tokens_[index] : static_cast<TokenId>(index); }
  void add_logprobs(std::span<const float> logits, int top, SampledToken& sampled);

  std::vector<float> adjusted_;
  std::vector<std::uint64_t> allowed_;
  std::vector<std::int32_t> counts_;  // by token: 0, or 1 + how often it was generated
  std::vector<TokenId> counted_tokens_;
  LogitsRow row_;
  TokenWeights weights_;
  bool listed_ = false;          // weights_ are of tokens_, not of all tokens
  std::vector<TokenId> tokens_;  // the top_k best
  std::vector<float> values_;    // logits of tokens_
};

}  // namespace accord::engine
