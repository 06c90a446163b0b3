#pragma once
// Where tensors lie in the weight files of a manifest.

#include "accord/status.hpp"
#include "engine/package/package.hpp"

namespace accord::engine {

/// kCorrupt unless each file of the package is its header and then tensors, without a gap, an overlap or an end elsewhere, and each
/// tensor of a file outside lies in it, as it is.
Status check_layout(const Manifest& manifest);

}  // namespace accord::engine
