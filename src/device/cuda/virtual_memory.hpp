#pragma once
// The driver's API for memory by handle: the device memory behind an address, its mappings, and its file descriptors,
// by which other processes open it.

#include <cuda.h>

#include <cstddef>
#include <string_view>

#include "accord/buffer.hpp"
#include "base/fd.hpp"
#include "device/cuda/driver.hpp"

namespace accord::device::cuda {

/// Driver calls that older drivers lack.
struct VirtualMemory {
  const Driver* driver = nullptr;
  decltype(&cuMemGetAddressRange) get_address_range = nullptr;
  decltype(&cuMemGetAllocationGranularity) get_allocation_granularity = nullptr;
  decltype(&cuMemGetAllocationPropertiesFromHandle) get_properties = nullptr;
  decltype(&cuMemRetainAllocationHandle) retain = nullptr;
  decltype(&cuMemCreate) create = nullptr;
  decltype(&cuMemRelease) release = nullptr;
  decltype(&cuMemAddressReserve) address_reserve = nullptr;
  decltype(&cuMemAddressFree) address_free = nullptr;
  decltype(&cuMemMap) mem_map = nullptr;
  decltype(&cuMemUnmap) mem_unmap = nullptr;
  decltype(&cuMemSetAccess) set_access = nullptr;
  decltype(&cuMemExportToShareableHandle) export_handle = nullptr;
  decltype(&cuMemImportFromShareableHandle) import_handle = nullptr;

  Status ok(std::string_view call, CUresult result) const { return driver->status_of(call, result); }
  /// Maps all of a handle's memory, for reads and writes by `device`. The mapping keeps the memory alive.
  Result<CUdeviceptr> map(CUmemGenericAllocationHandle handle, std::size_t bytes, Device device) const;
  /// Ends a mapping of map().
  Status unmap(CUdeviceptr address, std::size_t bytes) const;
  /// Permits `device` to read and write a mapping.
  Status grant(CUdeviceptr address, std::size_t bytes, Device device) const;
  /// A descriptor by which another process opens the memory.
  Result<UniqueFd> descriptor_of(CUmemGenericAllocationHandle handle) const;
  /// The handle, to be released, of memory whose descriptor comes from another process.
  Result<CUmemGenericAllocationHandle> open(int descriptor) const;
};

/// Always the same object. Fails with kUnsupported, with the reason, if the driver lacks a call or there is none.
Result<const VirtualMemory*> virtual_memory();

/// The kind of handle that a file descriptor shares.
inline constexpr CUmemAllocationHandleType kDescriptorHandle = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

}  // namespace accord::device::cuda
