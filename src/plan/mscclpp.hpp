#pragma once
// Imports execution plans of MSCCL++ (its JSON, as of 0.9). docs/plan-format.md says what is supported.

#include <string_view>

#include "accord/plan.hpp"
#include "accord/status.hpp"
#include "plan/plan.hpp"

namespace accord::plan {

/// Returns a plan with the effect of the execution plan that verify_for_calls() accepts. Each thread block becomes a
/// lane. Reads of a peer's input or output use scratch, and sums that are added to again use partials, so that
/// results are rounded once. kCorrupt and kUnsupported name the place ("gpus[0].threadblocks[1].ops[2]"): kCorrupt
/// for ops that are damaged, out of bounds or wait forever, kUnsupported for those without a counterpart here
/// (collectives of their own). kInvalidArgument: the plan is readable, but the verifier rejects it.
Result<Plan> import_mscclpp(std::string_view text, SwitchOps ops = SwitchOps::kMulticast);

}  // namespace accord::plan
