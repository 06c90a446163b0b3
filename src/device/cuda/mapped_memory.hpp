#pragma once
// Physical allocations behind addresses, through the driver API. runtime.hpp documents the function.

#include "device/runtime.hpp"

namespace accord::device::cuda {

Result<MappedMemory> mapped_memory(Device device, const void* memory, std::size_t bytes);

}  // namespace accord::device::cuda
