#pragma once
// Parses the names that users give for LoadOptions::activation_dtype.

#include <string_view>

#include "accord/buffer.hpp"
#include "accord/status.hpp"

namespace accord::engine {

/// Returns float8_e4m3fn for "fp8", the name that exported weights use too; otherwise the dtype of that name. Engines
/// can be loaded with int8 and float8_e4m3fn only. Fails with kInvalidArgument for an unknown name.
Result<DType> activation_dtype_of_name(std::string_view name);

}  // namespace accord::engine
