#pragma once
// Steps that end at members whose windows are not mapped here: they go through the link.

#include "accord/status.hpp"
#include "exec/lowered.hpp"

namespace accord::exec {

/// Gives every step of `plan` that ends in a block of a remote member of `domain` the opcode that goes through its link. So the
/// executor need not ask, and plans among mapped members run as they did. kUnsupported if a step reads such a block:
/// between hosts a plan puts (docs/algorithms.md).
Status route_remote_steps(LoweredPlan& plan, const Domain& domain, std::string_view plan_name);

}  // namespace accord::exec
