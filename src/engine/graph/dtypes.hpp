#pragma once
// Which dtypes an engine has kernels for: fewer than a communicator has.

#include <string_view>

#include "accord/buffer.hpp"

namespace accord::engine {

/// The dtype of that name in a package; any other is kInvalidArgument and names the nearest one.
Result<DType> engine_dtype_from_string(std::string_view name);

}  // namespace accord::engine
