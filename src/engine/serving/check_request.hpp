#pragma once
// Checks whether a request is valid for a model and its cache.

#include "accord/generation.hpp"
#include "engine/serving/step_plan.hpp"

namespace accord::engine {

inline constexpr int kMaxSamples = 1024;   // of one request
inline constexpr int kMaxLogprobs = 1024;  // of one token
inline constexpr int kMaxPriority = 100;   // its negative is the smallest

/// Fails with kInvalidArgument, naming what is wrong, or with kResourceExhausted if the request can never fit into the
/// cache.
Status check_request(const GenerationRequest& request, std::int32_t source_rows, const PlanLimits& limits);

/// Returns the adapter of a checked request, counted from 1; 0 if it has none.
std::int32_t adapter_of(const GenerationRequest& request, const PlanLimits& limits);

/// Returns the most tokens that each sample of a checked request may generate.
int new_token_limit(const GenerationRequest& request, std::int32_t source_rows, const PlanLimits& limits);

/// Returns the number of tokens before the first generated one, which may be in the prompt of a resumed sample.
inline std::size_t first_generated(const GenerationRequest& request) {
  return request.prompt.size() - static_cast<std::size_t>(request.generated);
}

}  // namespace accord::engine
