#pragma once
// Whether a request makes sense for a model and its cache.

#include "accord/generation.hpp"
#include "engine/serving/step_plan.hpp"

namespace accord::engine {

inline constexpr int kMostSamples = 1024;     // of one request
inline constexpr int kMostLogprobs = 1024;    // of one token
inline constexpr int kLargestPriority = 100;  // and its negative the smallest

/// kInvalidArgument names what is wrong, kResourceExhausted says that it can never fit into the cache.
Status check_request(const GenerationRequest& request, const PlanLimits& limits);

/// Tokens that each sample of a request that was checked may generate at most.
int new_token_limit(const GenerationRequest& request, const PlanLimits& limits);

}  // namespace accord::engine
