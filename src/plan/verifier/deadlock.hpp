#pragma once
// Says why lanes wait for ever.

#include <vector>

#include "plan/plan.hpp"
#include "plan/step_rules.hpp"

namespace accord::plan {

/// `stuck`: the steps at which lanes wait for ever, from walk(). kInvalidArgument; tells one circle of waits.
/// REQUIRES: a plan that passed check_pairing(), stuck not empty.
Status deadlock_error(const Plan& plan, const std::vector<StepPlace>& stuck);

}  // namespace accord::plan
