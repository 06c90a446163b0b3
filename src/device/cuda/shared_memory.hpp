#pragma once
// Memory of other devices and processes. runtime.hpp documents the functions.

#include "device/runtime.hpp"

namespace accord::device::cuda {

Status reach(Device from, Device to, void* memory, std::size_t bytes);
Result<MemoryHandle> share(Device device, void* memory, std::size_t bytes, UniqueFd& descriptor);
Result<void*> open_shared(Device device, const MemoryHandle& handle, int descriptor);
Status close_shared(Device device, void* memory);

}  // namespace accord::device::cuda
