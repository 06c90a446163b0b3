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

/// Returns the most tokens that each sample of a checked request may generate.
int new_token_limit(const GenerationRequest& request, std::int32_t source_rows, const PlanLimits& limits);

}  // namespace accord::engine
