#pragma once
// Norms on a device.

#include "engine/runtime/norm_steps.hpp"

namespace accord::engine {

/// run_norm() of a program on a device.
Status run_norm_on_device(const Norm& norm, const Execution& execution);

}  // namespace accord::engine
