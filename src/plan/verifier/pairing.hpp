#pragma once
// Checks that the steps of a plan fit together, without running it.

#include "plan/plan.hpp"

namespace accord::plan {

/// Checks shape, programs and each step, and that events match: each signal is sent once a round and waited for,
/// packets are put once and read once, lane barriers are in every lane of their rank. kInvalidArgument names the
/// step.
Status check_pairing(const Plan& plan);

}  // namespace accord::plan
