#pragma once
// Steps whose destinations are members with windows not mapped here: they use the link.

#include "accord/status.hpp"
#include "exec/lowered.hpp"

namespace accord::exec {

/// Assigns the opcode that uses the link to every step of `plan` that ends in a block of a remote member of `domain`.
/// The executor therefore need not check, and plans among mapped members run unchanged. Fails with kUnsupported if a
/// step reads such a block: between hosts, a plan puts data (docs/algorithms.md).
Status route_remote_steps(LoweredPlan& plan, const Domain& domain, std::string_view plan_name);

}  // namespace accord::exec
