#pragma once
// Explains why lanes wait forever.

#include <vector>

#include "plan/plan.hpp"
#include "plan/step_rules.hpp"

namespace accord::plan {

/// Returns kInvalidArgument with one cycle of waits. `stuck`: the steps at which lanes wait forever, from walk().
/// REQUIRES: a plan that passed check_pairing(), stuck not empty.
Status deadlock_error(const Plan& plan, const std::vector<StepPlace>& stuck);

}  // namespace accord::plan
