#pragma once
// Converts the flow of an execution plan to our plan format.

#include "plan/mscclpp/flow.hpp"
#include "plan/plan.hpp"

namespace accord::plan::mscclpp {

/// Choices of an importer.
struct EmitOptions {
  Order order = Order::kNone;
  Pacing pacing = Pacing::kByExecutor;
  bool stage_inputs = false;  ///< read all inputs from copies in scratch, as in-place calls may need
};

/// kUnsupported names the op that has no counterpart. The plan is not verified.
Result<Plan> emit(const ExecutionPlan& plan, const Flow& flow, const EmitOptions& options);

}  // namespace accord::plan::mscclpp
