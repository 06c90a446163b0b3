#pragma once
// Devices by the names that users give them.

#include <string_view>

#include "accord/buffer.hpp"

namespace accord::engine {

/// "cpu", "cuda" (the first one) or "cuda:1". kInvalidArgument for others.
Result<Device> device_of_name(std::string_view name);

}  // namespace accord::engine
