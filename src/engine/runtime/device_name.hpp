#pragma once
// The names that users give to devices.

#include <string_view>

#include "accord/buffer.hpp"

namespace accord::engine {

/// Accepts "cpu", "cuda" (the first one) or "cuda:1". Fails with kInvalidArgument for any other name.
Result<Device> device_of_name(std::string_view name);

}  // namespace accord::engine
