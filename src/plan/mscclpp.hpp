#pragma once
// Execution plans of MSCCL++ (its JSON, as of 0.9), made plans of our own. docs/plan-format.md says what is taken.

#include <string_view>

#include "accord/plan.hpp"
#include "accord/status.hpp"
#include "plan/plan.hpp"

namespace accord::plan {

/// A plan that does what the execution plan does and that verify_for_calls() accepts: each thread block is a lane; reads of a
/// peer's input or output go through scratch, sums that are added to again through partials, so that results are rounded once.
/// kCorrupt and kUnsupported name the place ("gpus[0].threadblocks[1].ops[2]"): what is damaged, out of bounds or waits for ever; and
/// what has no counterpart here (collectives of their own). kInvalidArgument: the plan is
/// read, but the verifier refuses it.
Result<Plan> import_mscclpp(std::string_view text, SwitchOps ops = SwitchOps::kMulticast);

}  // namespace accord::plan
