#pragma once
// The steps of all ranks of an engine over time, as one trace.

#include <string>

#include "engine/runtime/run_context.hpp"

namespace accord::engine {

/// Returns the steps that `context` recorded and those of the other ranks of its engine's groups, in the format of
/// ui.perfetto.dev: a process for each rank, with a track of runs and steps. Arrows lead from the rank that arrived
/// last at a collective to the ranks that waited for it. Collective over the bound groups; every rank gets the same
/// text. Fails with kWrongState during a run.
Result<std::string> gather_trace(RunContext& context);

}  // namespace accord::engine
