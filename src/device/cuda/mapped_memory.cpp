// The driver gives a handle only for memory that was created by handle, so a range is walked from one allocation to the
// next and each is asked for its handle. NCCL opens such memory in other processes by file descriptors, so allocations
// without them do not count. (Between hosts with one NVLink domain it uses fabric handles instead; ncclMemAlloc and
// allocators that follow its rules request both.)
#include "device/cuda/mapped_memory.hpp"

#include <cuda.h>

#include <cstdint>

#include "device/cuda/device_scope.hpp"
#include "device/cuda/driver.hpp"

namespace accord::device::cuda {
namespace {

/// Driver calls that older drivers lack.
struct MappingCalls {
  decltype(&cuMemGetAddressRange) get_address_range = nullptr;
  decltype(&cuMemRetainAllocationHandle) retain_allocation_handle = nullptr;
  decltype(&cuMemGetAllocationPropertiesFromHandle) get_properties = nullptr;
  decltype(&cuMemRelease) release = nullptr;
};

Result<MappingCalls> load_mapping_calls() {
  ACCORD_ASSIGN_OR_RETURN(const Driver* const loaded, driver());
  MappingCalls calls;
  for (const Status& found : {
           look_up(loaded->library, "cuMemGetAddressRange_v2", calls.get_address_range),
           look_up(loaded->library, "cuMemRetainAllocationHandle", calls.retain_allocation_handle),
           look_up(loaded->library, "cuMemGetAllocationPropertiesFromHandle", calls.get_properties),
           look_up(loaded->library, "cuMemRelease", calls.release),
       })
    ACCORD_RETURN_IF_ERROR(found);
  return calls;
}

/// Whether the allocation at `address` is memory of `device` that other processes can open.
bool can_be_opened(const MappingCalls& call, Device device, CUdeviceptr address) {
  CUmemGenericAllocationHandle handle = 0;
  if (call.retain_allocation_handle(&handle, reinterpret_cast<void*>(address)) != CUDA_SUCCESS) return false;
  CUmemAllocationProp properties = {};
  const CUresult found = call.get_properties(&properties, handle);
  (void)call.release(handle);
  return found == CUDA_SUCCESS && properties.location.type == CU_MEM_LOCATION_TYPE_DEVICE &&
         properties.location.id == device.index &&
         (properties.requestedHandleTypes & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) != 0;
}

}  // namespace

Result<MappedMemory> mapped_memory(Device device, const void* memory, std::size_t bytes) {
  const DeviceScope scope(device);
  ACCORD_RETURN_IF_ERROR(scope.status());
  static const auto* const loaded =
      new Result<MappingCalls>(load_mapping_calls());  // never freed, for threads that outlive objects
  if (!loaded->ok()) return MappedMemory{};
  const MappingCalls& call = **loaded;
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
