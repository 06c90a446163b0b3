#pragma once
// What the ranks of an engine did at which moment, as one trace.

#include <string>

#include "engine/runtime/run_context.hpp"

namespace accord::engine {

/// The steps that `context` recorded and those of the other ranks of its engine's groups, as ui.perfetto.dev takes them: a process for
/// each rank, in it a track of runs and steps. From the rank that came last to a collective arrows go to the ranks that
/// waited for it. Collective over the bound groups; every rank gets the same text. kWrongState during
/// a run.
Result<std::string> gather_trace(RunContext& context);

}  // namespace accord::engine
