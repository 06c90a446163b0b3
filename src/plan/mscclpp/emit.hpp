#pragma once
// From the flow of an execution plan to a plan of our own.

#include "plan/mscclpp/flow.hpp"
#include "plan/plan.hpp"

namespace accord::plan::mscclpp {

/// What an importer may choose.
struct EmitOptions {
  Order order = Order::kNone;
  Pacing pacing = Pacing::kByExecutor;
  bool stage_inputs = false;  ///< read all inputs from copies in scratch, as calls in place may need
};

/// kUnsupported names the op that has no counterpart. The plan is not verified.
Result<Plan> emit(const ExecutionPlan& plan, const Flow& flow, const EmitOptions& options);

}  // namespace accord::plan::mscclpp
