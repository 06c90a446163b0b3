#pragma once
// Norms on a device.

#include "engine/ops/all_reduce_step.hpp"
#include "engine/host/norm_steps.hpp"

namespace accord::engine {

/// run_norm() for a program on a device.
Status run_norm_on_device(const Norm& norm, const Execution& execution);

/// run_step() of a sum, then run_norm() of its result. Both are one kernel if the communicator runs a plan of its own
/// and there are few rows, unless the sum must run by itself.
Status run_sum_and_norm_on_device(const AllReduce& sum, const Norm& norm, const Execution& execution);

}  // namespace accord::engine
