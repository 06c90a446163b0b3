#pragma once
// Token generation: requests, sampling options and events.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "accord/buffer.hpp"
#include "accord/status.hpp"
#include "accord/token.hpp"

namespace accord {

/// Identifies a request from its submission to its last event; never reused.
using RequestId = std::uint64_t;

/// Restricts which tokens may come next: for grammars, choices and the like. Used on the rank that samples.
class TokenMask {
 public:
  virtual ~TokenMask() = default;
  /// Announces a call of restrict() with the same sample and tokens, before the step that computes the logits for it:
  /// a mask may do its work beside the step, on its own thread. Should return quickly. Not every call of restrict() is
  /// announced, and requests may end in between.
  virtual void prepare(int sample, std::span<const TokenId> generated) const {
    (void)sample;
    (void)generated;
  }
  /// Clears in `allowed` every token that may not follow the `generated` tokens of sample `sample`. Token t is bit
  /// t % 64 of word t / 64, and all bits are set on entry. For different samples, called from several threads at once.
  /// A failure ends the sample with that Status.
  virtual Status restrict(int sample, std::span<const TokenId> generated, std::span<std::uint64_t> allowed) const = 0;
};

struct LogitBias {
  TokenId token = 0;
  float bias = 0;  ///< added to its logit; -inf forbids it
};

/// How the next token is sampled from the logits: mask, biases, penalties, then temperature, top_k, top_p, min_p, in
/// this order and with the same meaning as in transformers. Tokens that tie at the edge of top_k or top_p are all
/// kept.
struct SamplingOptions {
  float temperature = 0;  ///< 0: the best token; of equal ones, the one with the lowest id
  int top_k = 0;          ///< only the k best; 0: all
  float top_p = 1;        ///< only the best that together have this probability, [0, 1]; the best one is always kept
  float min_p = 0;        ///< only those with at least this fraction of the best one's probability, [0, 1]
  /// Divides the logits of tokens already seen, including the prompt (multiplies negative ones); > 0.
  float repetition_penalty = 1;
  float presence_penalty = 0;          ///< subtracted from the logits of tokens that were generated before
  float frequency_penalty = 0;         ///< the same, once for each occurrence
  std::vector<LogitBias> biases = {};  ///< each token at most once
  std::shared_ptr<const TokenMask> mask = {};
  /// Equal seeds give equal tokens, whatever else is in the batch and on any number of ranks, provided that the
  /// logits are equal. The samples of one request differ.
  std::uint64_t seed = 0;
};

/// A tensor of a request's source: row-major, without gaps.
struct SourceTensor {
  DType dtype = DType::kInt64;
  std::vector<std::int64_t> shape = {};
  std::vector<std::byte> data = {};
  bool operator==(const SourceTensor&) const = default;
};

/// A prompt to continue.
struct GenerationRequest {
  std::vector<TokenId> prompt = {};
  /// For a model with an encoder: the encoder's inputs, in its order. Each token attends to all of them. The prompt is
  /// then the beginning of the answer; if it is empty, it consists of the package's start tokens. For an encoder of
  /// images (LanguageModel::source_token()), the prompt has as many of these tokens as the encoder makes rows; a prompt
  /// without them has no source.
  std::vector<SourceTensor> source = {};
  std::string adapter = {};  ///< the name of one of LanguageModel::adapters(); empty: the model itself
  SamplingOptions sampling = {};
  std::optional<int> max_new_tokens = {};  ///< absent: as many as fit into the context and the cache
  std::vector<TokenId> stop_tokens = {};   ///< the end of sequence, and others
  /// Searched in the generated tokens only, not across the end of the prompt.
  std::vector<std::vector<TokenId>> stop_sequences = {};
  int priority = 0;  ///< [-100, 100]; higher ones first
  int samples = 1;   ///< continuations of the same prompt
  /// To resume a sample of an earlier request, for example after a failure: its index, the `generated` tokens that end
  /// the prompt, and equal options give the tokens that would have followed there. These tokens count as generated for
  /// penalties, masks, stop sequences and the indices of events, but not for max_new_tokens.
  int first_sample = 0;
  int generated = 0;
  std::optional<int> logprobs = {};  ///< return the log probability of each token, and of the n best
};

enum class FinishReason : std::uint8_t { kStopToken, kStopSequence, kLength, kCancelled, kError };

/// Returns "stop_token", for example.
std::string_view to_string(FinishReason reason);

struct TokenLogprob {
  TokenId token = 0;
  float logprob = 0;
};

/// One more token of a sample, or its end, or both. An event with a finish reason is the sample's last one.
struct GenerationEvent {
  RequestId request = 0;
  int sample = 0;
  int index = 0;  ///< of the token among those generated; for an end without a token, how many there were
  std::optional<TokenId> token;  ///< also the one that stops the sample
  float logprob = 0;             ///< if requested: natural logarithm of its probability by the model, before any option
  std::vector<TokenLogprob> top;  ///< if requested: the n best, best first
  std::optional<FinishReason> finish;
  Status status;  ///< the reason, after an error or if everything has ended
};

/// Called for each event of a request, in order, on the model's own thread; it should return quickly.
using GenerationCallback = std::function<void(const GenerationEvent&)>;

/// The work that a model has done since it was created, and has still to do, as of its last step.
struct GenerationStats {
  std::int32_t requests = 0;  ///< not ended
  std::int32_t waiting = 0;   ///< sequences
  std::int32_t running = 0;   ///< sequences
  std::int32_t blocks = 0;    ///< of the cache
  std::int32_t available_blocks = 0;
  std::uint64_t steps = 0;
  std::uint64_t computed_tokens = 0;
  std::uint64_t reused_tokens = 0;  ///< found in the cache instead
  std::uint64_t preemptions = 0;
};

}  // namespace accord
