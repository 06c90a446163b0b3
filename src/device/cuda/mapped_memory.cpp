// The driver gives a handle only for memory that was created by handle, so a range is walked from one allocation to the
// next and each is asked for its handle. NCCL opens such memory in other processes by file descriptors, so allocations
// without them do not count. (Between hosts with one NVLink domain it uses fabric handles instead; ncclMemAlloc and
// allocators that follow its rules request both.)
#include "device/cuda/mapped_memory.hpp"

#include <cuda.h>

#include <cstdint>

#include "device/cuda/device_scope.hpp"
#include "device/cuda/virtual_memory.hpp"

namespace accord::device::cuda {
namespace {

/// Whether the allocation at `address` is memory of `device` that other processes can open.
bool can_be_opened(const VirtualMemory& call, Device device, CUdeviceptr address) {
  CUmemGenericAllocationHandle handle = 0;
  if (call.retain(&handle, reinterpret_cast<void*>(address)) != CUDA_SUCCESS) return false;
  CUmemAllocationProp properties = {};
  const CUresult found = call.get_properties(&properties, handle);
  (void)call.release(handle);
  return found == CUDA_SUCCESS && properties.location.type == CU_MEM_LOCATION_TYPE_DEVICE &&
         properties.location.id == device.index && (properties.requestedHandleTypes & kDescriptorHandle) != 0;
}

}  // namespace

Result<MappedMemory> mapped_memory(Device device, const void* memory, std::size_t bytes) {
  const DeviceScope scope(device);
  ACCORD_RETURN_IF_ERROR(scope.status());
  const Result<const VirtualMemory*> loaded = virtual_memory();
  if (!loaded.ok()) return MappedMemory{};
  const VirtualMemory& call = **loaded;
  const auto begin = reinterpret_cast<CUdeviceptr>(memory);
  MappedMemory found;
  for (CUdeviceptr address = begin; address < begin + bytes;) {
    CUdeviceptr base = 0;
    std::size_t size = 0;
    if (call.get_address_range(&base, &size, address) != CUDA_SUCCESS || base + size <= address ||
        !can_be_opened(call, device, address))
      return MappedMemory{};
    if (found.allocations == 0) found.offset = begin - base;
    ++found.allocations;
    found.bytes += size;
    address = base + size;
  }
  return found;
}

}  // namespace accord::device::cuda
