// A sequence whose tokens all fit into the empty cache can always be completed, alone if necessary; one that does not
// fit is rejected here. The last generated token is never computed, so it needs no place in the cache, but it counts
// for the context.
#include "engine/serving/check_request.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "base/text.hpp"

namespace accord {

std::string_view to_string(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStopToken: return "stop_token";
    case FinishReason::kStopSequence: return "stop_sequence";
    case FinishReason::kLength: return "length";
    case FinishReason::kCancelled: return "cancelled";
    case FinishReason::kError: return "error";
  }
  return "unknown";
}

}  // namespace accord

namespace accord::engine {
namespace {

template <typename... Parts>
Status invalid(fmt::format_string<Parts...> text, Parts&&... parts) {
  return Status(StatusCode::kInvalidArgument, fmt::format(text, std::forward<Parts>(parts)...));
}

Status check_tokens(std::span<const TokenId> tokens, const char* what, const PlanLimits& limits) {
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] < 0 || tokens[i] >= limits.vocabulary)
      return invalid("{}: token {} at position {} is outside the vocabulary of {} tokens", what, tokens[i], i,
                     limits.vocabulary);
  }
  return Status();
}

// NaN is in no range.
Status check_range(const char* name, float value, float min, float max) {
  if (value >= min && value <= max) return Status();
  return invalid("{}={}; expected a number from {} to {}", name, value, min, max);
}

Status check_biases(const std::vector<LogitBias>& biases, const PlanLimits& limits) {
  std::vector<TokenId> tokens;
  for (const LogitBias& bias : biases) {
    if (std::isnan(bias.bias) || bias.bias == std::numeric_limits<float>::infinity())
      return invalid("biases: {} for token {}; expected a number, or -inf", bias.bias, bias.token);
    tokens.push_back(bias.token);
  }
  ACCORD_RETURN_IF_ERROR(check_tokens(tokens, "biases", limits));
  std::ranges::sort(tokens);
  const auto twice = std::ranges::adjacent_find(tokens);
  if (twice != tokens.end()) return invalid("biases: token {} appears twice", *twice);
  return Status();
}

Status check_sampling(const SamplingOptions& sampling, const PlanLimits& limits) {
  constexpr float kLargest = 1e6F;
  ACCORD_RETURN_IF_ERROR(check_range("temperature", sampling.temperature, 0, kLargest));
  if (sampling.temperature > 0 && sampling.temperature < 1e-6F)
    return invalid("temperature={}; expected 0 (the best token), or at least 1e-6", sampling.temperature);
  if (sampling.top_k < 0) return invalid("top_k={}; expected 0 (all) or more", sampling.top_k);
  ACCORD_RETURN_IF_ERROR(check_range("top_p", sampling.top_p, 0, 1));
  ACCORD_RETURN_IF_ERROR(check_range("min_p", sampling.min_p, 0, 1));
  ACCORD_RETURN_IF_ERROR(check_range("repetition_penalty", sampling.repetition_penalty, 1 / kLargest, kLargest));
  ACCORD_RETURN_IF_ERROR(check_range("presence_penalty", sampling.presence_penalty, -kLargest, kLargest));
  ACCORD_RETURN_IF_ERROR(check_range("frequency_penalty", sampling.frequency_penalty, -kLargest, kLargest));
  return check_biases(sampling.biases, limits);
}

Status check_stops(const GenerationRequest& request, const PlanLimits& limits) {
  ACCORD_RETURN_IF_ERROR(check_tokens(request.stop_tokens, "stop_tokens", limits));
  for (const auto& sequence : request.stop_sequences) {
    if (sequence.empty()) return invalid("stop_sequences: one of them is empty");
    ACCORD_RETURN_IF_ERROR(check_tokens(sequence, "stop_sequences", limits));
  }
  return Status();
}

// Tokens for which the cache has blocks beside those of the source.
std::int64_t cache_tokens(std::int32_t source_rows, const PlanLimits& limits) {
  const std::int32_t cached = limits.source_token ? 0 : source_rows;
  const std::int64_t source_blocks = (cached + limits.block_tokens - 1) / limits.block_tokens;
  return (limits.blocks - source_blocks) * limits.block_tokens;
}

Status check_lengths(const GenerationRequest& request, std::int32_t source_rows, const PlanLimits& limits) {
  if (request.prompt.empty()) return invalid("the prompt is empty");
  const auto prompt = static_cast<std::int64_t>(request.prompt.size());
  if (prompt >= limits.max_context)
    return invalid("a prompt of {} tokens leaves no room in a context of {}", prompt, limits.max_context);
  if (request.max_new_tokens && *request.max_new_tokens < 1)
    return invalid("max_new_tokens={}; expected 1 or more", *request.max_new_tokens);
  if (request.max_new_tokens && prompt + *request.max_new_tokens > limits.max_context)
    return invalid("a prompt of {} tokens and max_new_tokens={} exceed the context of {}", prompt,
                   *request.max_new_tokens, limits.max_context);
  const std::int64_t cached = prompt + request.max_new_tokens.value_or(1) - 1;
  if (cached > cache_tokens(source_rows, limits))
    return Status(StatusCode::kResourceExhausted,
                  fmt::format("{} tokens{} can never fit into the cache of {} blocks of {} tokens", cached,
                              source_rows > 0 ? fmt::format(" and a source of {} rows", source_rows) : "",
                              limits.blocks, limits.block_tokens));
  return Status();
}

// Tokens that were generated stand for nothing.
Status check_source(const GenerationRequest& request, std::int32_t source_rows, const PlanLimits& limits) {
  if (source_rows > limits.max_source)
    return invalid("a source of {} rows; the encoder makes at most {}", source_rows, limits.max_source);
  if (!limits.source_token) return Status();
  const auto given = std::span(request.prompt).first(first_generated(request));
  const auto places = std::ranges::count(given, *limits.source_token);
  if (places == source_rows) return Status();
  return invalid("the prompt has token {}, which stands for a row of the source, {} times; the source has {} rows",
                 *limits.source_token, places, source_rows);
}

Status check_adapter(const std::string& name, const PlanLimits& limits) {
  if (name.empty() || std::ranges::find(limits.adapters, name) != limits.adapters.end()) return Status();
  return unknown_name("adapter", name, std::vector<std::string_view>(limits.adapters.begin(), limits.adapters.end()));
}

}  // namespace

Status check_request(const GenerationRequest& request, std::int32_t source_rows, const PlanLimits& limits) {
  ACCORD_RETURN_IF_ERROR(check_lengths(request, source_rows, limits));
  ACCORD_RETURN_IF_ERROR(check_tokens(request.prompt, "the prompt", limits));
  ACCORD_RETURN_IF_ERROR(check_sampling(request.sampling, limits));
  ACCORD_RETURN_IF_ERROR(check_stops(request, limits));
  if (request.priority < -kMaxPriority || request.priority > kMaxPriority)
    return invalid("priority={}; expected a number from {} to {}", request.priority, -kMaxPriority, kMaxPriority);
  if (request.samples < 1 || request.samples > kMaxSamples)
    return invalid("samples={}; expected a number from 1 to {}", request.samples, kMaxSamples);
  if (request.first_sample < 0 || request.first_sample > kMaxSamples - request.samples)
    return invalid("first_sample={} and samples={}; expected numbers whose sum is at most {}", request.first_sample,
                   request.samples, kMaxSamples);
  if (request.generated < 0 || std::cmp_greater_equal(request.generated, request.prompt.size()))
    return invalid("generated={}; expected a number from 0 to {}, less than the tokens of the prompt",
                   request.generated, request.prompt.size() - 1);
  ACCORD_RETURN_IF_ERROR(check_source(request, source_rows, limits));
  ACCORD_RETURN_IF_ERROR(check_adapter(request.adapter, limits));
  if (request.logprobs && (*request.logprobs < 0 || *request.logprobs > std::min(kMaxLogprobs, limits.vocabulary)))
    return invalid("logprobs={}; expected a number from 0 to {}", *request.logprobs,
                   std::min(kMaxLogprobs, limits.vocabulary));
  return Status();
}

std::int32_t adapter_of(const GenerationRequest& request, const PlanLimits& limits) {
  if (request.adapter.empty()) return 0;
  return static_cast<std::int32_t>(std::ranges::find(limits.adapters, request.adapter) - limits.adapters.begin()) + 1;
}

int new_token_limit(const GenerationRequest& request, std::int32_t source_rows, const PlanLimits& limits) {
  if (request.max_new_tokens) return *request.max_new_tokens;
  const auto prompt = static_cast<std::int64_t>(request.prompt.size());
  return static_cast<int>(
      std::min<std::int64_t>(limits.max_context - prompt, cache_tokens(source_rows, limits) - prompt + 1));
}

}  // namespace accord::engine
