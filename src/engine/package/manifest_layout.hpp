#pragma once
// Checks where the tensors of a manifest are in its weight files.

#include "accord/status.hpp"
#include "engine/package/package.hpp"

namespace accord::engine {

/// Fails with kCorrupt unless each file of the package is a header followed by tensors, without gap or overlap, up to
/// the last byte, and each tensor of a file outside the package is inside that file and not packed.
Status check_layout(const Manifest& manifest);

}  // namespace accord::engine
