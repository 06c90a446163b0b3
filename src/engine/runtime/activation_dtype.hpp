#pragma once
// LoadOptions::activation_dtype by the names that users give it.

#include <string_view>

#include "accord/buffer.hpp"
#include "accord/status.hpp"

namespace accord::engine {

/// "fp8" is float8_e4m3fn, as of exported weights; else a dtype by its name, of which int8 and float8_e4m3fn can be loaded with. kInvalidArgument
/// for others.
Result<DType> activation_dtype_of_name(std::string_view name);

}  // namespace accord::engine
