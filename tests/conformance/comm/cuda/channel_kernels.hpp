#pragma once

#include <cstddef>

#include "accord/channel_device.hpp"

namespace accord::testing {

/// Puts `values` into the peer's memory and waits for the peer's values. Returns a cudaError_t.
int launch_exchange(const DeviceChannelHandle& to, const float* values, std::size_t count, void* stream);

}  // namespace accord::testing
