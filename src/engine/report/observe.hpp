#pragma once
// Shows the values inside a model while it runs, for comparison with another implementation.

#include <span>
#include <vector>

#include "accord/engine.hpp"
#include "engine/runtime/run_context.hpp"

namespace accord::engine {

/// Runs `context` once and passes every value of the model's own graph to `see`: first the values that the engine
/// computes, in their order and whole (parts that the ranks hold are gathered), then the others, without memory.
/// Collective over the bound groups.
Status run_observed(RunContext& context, std::span<const TensorView> inputs, const SeeValue& see);

}  // namespace accord::engine
