#pragma once
// The calls that preparing a program makes itself. All others are in ops/.

#include "engine/program/tensor.hpp"

namespace accord::engine {

/// to = from, converted to the dtype of `to`. Both have the same sizes; their layouts may differ. Not for complex
/// numbers unless the dtypes are equal.
struct ConvertCall {
  Tensor from, to;
};

}  // namespace accord::engine
