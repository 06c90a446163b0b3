#pragma once
// The values inside a model while it runs, to be held against another implementation.

#include <span>
#include <vector>

#include "accord/engine.hpp"
#include "engine/runtime/run_context.hpp"

namespace accord::engine {

/// Runs `context` once and shows `see` every value of the model's own graph: those that this engine makes, in their order, whole (what
/// ranks hold in parts is gathered), then the others without memory. Collective over the bound groups.
Status run_observed(RunContext& context, std::span<const TensorView> inputs, const SeeValue& see);

}  // namespace accord::engine
