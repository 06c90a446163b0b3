#pragma once
// Arguments of floats that kernels read in float32.

#include <optional>
#include <string_view>

#include "engine/program/preparation.hpp"

namespace accord::engine {

/// Returns the tensor in float32, without gaps. Fails with kUnsupported unless it has floats.
Result<Tensor> dense_float32(Preparation& op, const Tensor& tensor);
/// The same for an argument, or nothing if it is left out. Fails with kCorrupt if it has other sizes.
Result<std::optional<Tensor>> dense_float32(Preparation& op, std::string_view name, const Sizes& sizes);

}  // namespace accord::engine
