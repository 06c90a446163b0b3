#pragma once
// The dtypes that an engine has kernels for, a subset of a communicator's.

#include <string_view>

#include "accord/buffer.hpp"

namespace accord::engine {

/// Returns the dtype that a package calls `name`. Fails with kInvalidArgument, naming the nearest dtype, if there is
/// none.
Result<DType> engine_dtype_from_string(std::string_view name);

}  // namespace accord::engine
