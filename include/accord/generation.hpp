#pragma once
// Generating tokens: what is asked for (a request, how to sample), and what comes of it (events).

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "accord/status.hpp"
#include "accord/token.hpp"

namespace accord {

/// Names a request from its submission to its last event; never used again.
using RequestId = std::uint64_t;

/// Says which tokens may come next: for grammars, choices and the like.
class TokenMask {
 public:
  virtual ~TokenMask() = default;
  /// Clears in `allowed`, whose bit t % 64 of word t / 64 is token t and which comes with all bits set, what may not
  /// follow `generated`. Called by the rank that samples, before each token; for different samples at once from several
  /// threads. A failure ends the sample with it.
  virtual Status restrict(std::span<const TokenId> generated, std::span<std::uint64_t> allowed) const = 0;
};

struct LogitBias {
  TokenId token = 0;
  float bias = 0;  ///< added to its logit; -inf forbids it
};

/// How the next token comes of the logits: mask, biases, penalties, then temperature, top_k, top_p, min_p, in this
/// order and with the meaning that transformers gives them. Tokens that tie at the edge of top_k or top_p are all kept.
struct SamplingOptions {
  float temperature = 0;  ///< 0: the best token, of equal ones the lowest
  int top_k = 0;          ///< only the k best; 0: all
  float top_p = 1;        ///< only the best that together have this probability, [0, 1]; the best one is always kept
  float min_p = 0;        ///< only those with this part of the best one's probability, [0, 1]
  float repetition_penalty = 1;  ///< > 0; divides logits of tokens seen, also in the prompt (multiplies negative ones)
  float presence_penalty = 0;    ///< taken off the logits of tokens that were generated before
  float frequency_penalty = 0;   ///< the same, once for each time
  std::vector<LogitBias> biases = {};  ///< each token at most once
  std::shared_ptr<const TokenMask> mask = {};
  /// Equal seeds give equal tokens, whatever else is in the batch and on however many ranks, if the logits are equal.
  /// The samples of one request differ.
  std::uint64_t seed = 0;
};

/// A prompt to be continued.
struct GenerationRequest {
  std::vector<TokenId> prompt = {};
  SamplingOptions sampling = {};
  std::optional<int> max_new_tokens = {};                 ///< without: as many as context and cache hold
  std::vector<TokenId> stop_tokens = {};                  ///< the end of sequence, and others
  std::vector<std::vector<TokenId>> stop_sequences = {};  ///< found in what is generated, not across the prompt's end
  int priority = 0;                                       ///< [-100, 100]; higher ones first
  int samples = 1;                                        ///< continuations of the same prompt
  std::optional<int> logprobs = {};                       ///< also the probability of each token, and of the n best
};

enum class FinishReason : std::uint8_t { kStopToken, kStopSequence, kLength, kCancelled, kError };

/// "stop_token", ...
std::string_view to_string(FinishReason reason);

struct TokenLogprob {
  TokenId token = 0;
  float logprob = 0;
};

/// One more token of a sample, or its end, or both. After the event with a reason nothing more comes of the sample.
struct GenerationEvent {
  RequestId request = 0;
  int sample = 0;
  int index = 0;                 ///< of the token among those generated; at an end without a token, how many there were
  std::optional<TokenId> token;  ///< also the one that stops the sample
  float logprob = 0;             ///< if asked for: natural logarithm of its probability by the model, before any option
  std::vector<TokenLogprob> top;  ///< if asked for: the n best, best first
  std::optional<FinishReason> finish;
  Status status;  ///< why, after an error or the end of everything
};

}  // namespace accord
