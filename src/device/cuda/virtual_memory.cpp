#include "device/cuda/virtual_memory.hpp"

#include <cstdint>

namespace accord::device::cuda {
namespace {

Result<VirtualMemory> load_virtual_memory() {
  VirtualMemory call;
  ACCORD_ASSIGN_OR_RETURN(call.driver, driver());
  void* const library = call.driver->library;
  for (const Status& found : {
           look_up(library, "cuMemGetAddressRange_v2", call.get_address_range),
           look_up(library, "cuMemGetAllocationGranularity", call.get_allocation_granularity),
           look_up(library, "cuMemGetAllocationPropertiesFromHandle", call.get_properties),
           look_up(library, "cuMemRetainAllocationHandle", call.retain),
           look_up(library, "cuMemCreate", call.create),
           look_up(library, "cuMemRelease", call.release),
           look_up(library, "cuMemAddressReserve", call.address_reserve),
           look_up(library, "cuMemAddressFree", call.address_free),
           look_up(library, "cuMemMap", call.mem_map),
           look_up(library, "cuMemUnmap", call.mem_unmap),
           look_up(library, "cuMemSetAccess", call.set_access),
           look_up(library, "cuMemExportToShareableHandle", call.export_handle),
           look_up(library, "cuMemImportFromShareableHandle", call.import_handle),
       })
    ACCORD_RETURN_IF_ERROR(found);
  return call;
}

}  // namespace

Result<const VirtualMemory*> virtual_memory() {
  // never freed, for threads that outlive static objects
  static const auto* const loaded = new Result<VirtualMemory>(load_virtual_memory());
  ACCORD_RETURN_IF_ERROR(loaded->status());
  return &**loaded;
}

Result<CUdeviceptr> VirtualMemory::map(CUmemGenericAllocationHandle handle, std::size_t bytes, Device device) const {
  CUdeviceptr address = 0;
  ACCORD_RETURN_IF_ERROR(ok("cuMemAddressReserve", address_reserve(&address, bytes, 0, 0, 0)));
  if (Status mapped = ok("cuMemMap", mem_map(address, bytes, 0, handle, 0)); !mapped.ok()) {
    (void)address_free(address, bytes);
    return mapped;
  }
  const Status granted = grant(address, bytes, device);
  if (granted.ok()) return address;
  (void)unmap(address, bytes);
  return granted;
}

Status VirtualMemory::unmap(CUdeviceptr address, std::size_t bytes) const {
  ACCORD_RETURN_IF_ERROR(ok("cuMemUnmap", mem_unmap(address, bytes)));
  return ok("cuMemAddressFree", address_free(address, bytes));
}

Status VirtualMemory::grant(CUdeviceptr address, std::size_t bytes, Device device) const {
  CUmemAccessDesc access = {};
  access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access.location.id = device.index;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  return ok("cuMemSetAccess", set_access(address, bytes, &access, 1));
}

Result<UniqueFd> VirtualMemory::descriptor_of(CUmemGenericAllocationHandle handle) const {
  int file = -1;
  ACCORD_RETURN_IF_ERROR(ok("cuMemExportToShareableHandle", export_handle(&file, handle, kDescriptorHandle, 0)));
  return UniqueFd(file);
}

Result<CUmemGenericAllocationHandle> VirtualMemory::open(int descriptor) const {
  CUmemGenericAllocationHandle handle = 0;
  // The API takes the descriptor as a pointer.
  void* const file = reinterpret_cast<void*>(static_cast<std::intptr_t>(descriptor));
  ACCORD_RETURN_IF_ERROR(ok("cuMemImportFromShareableHandle", import_handle(&handle, file, kDescriptorHandle)));
  return handle;
}

}  // namespace accord::device::cuda
