// There are two kinds of memory. That of cudaMalloc is shared by a handle of CUDA IPC, and a device that may access a
// peer accesses all of it. Virtual memory (cuMemCreate: NCCL's own allocations, torch's expandable segments) is shared
// by a file descriptor, and access is granted for each mapping. The driver says which kind an address is.
#include "device/cuda/shared_memory.hpp"

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <array>
#include <bit>
#include <map>
#include <mutex>
#include <utility>

#include "base/text.hpp"
#include "device/cuda/device_scope.hpp"
#include "device/cuda/error.hpp"
#include "device/cuda/virtual_memory.hpp"

namespace accord::device::cuda {
namespace {

/// The allocation or mapping that an address is in.
struct Block {
  CUdeviceptr base = 0;
  std::size_t bytes = 0;
  bool is_virtual = false;
};

Result<Block> block_of(const VirtualMemory& call, void* memory, std::size_t bytes) {
  const auto at = reinterpret_cast<CUdeviceptr>(memory);
  Block block;
  ACCORD_RETURN_IF_ERROR(call.ok("cuMemGetAddressRange", call.get_address_range(&block.base, &block.bytes, at)));
  if (at - block.base + bytes > block.bytes)
    return Status(StatusCode::kUnsupported,
                  fmt::format("{} are not in one allocation of CUDA, and only one can be shared", bytes_text(bytes)));
  std::array<CUpointer_attribute, 1> what = {CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE};
  int has_handle = 0;
  std::array<void*, 1> answers = {&has_handle};
  ACCORD_RETURN_IF_ERROR(call.ok("cuPointerGetAttributes", call.driver->pointer_get_attributes(
                                                               what.size(), what.data(), answers.data(), block.base)));
  block.is_virtual = has_handle == 0;
  return block;
}

/// Fails with kUnsupported for memory that was created without permission to be shared.
Status export_to(const VirtualMemory& call, const Block& block, UniqueFd& descriptor) {
  CUmemGenericAllocationHandle handle = 0;
  ACCORD_RETURN_IF_ERROR(
      call.ok("cuMemRetainAllocationHandle", call.retain(&handle, reinterpret_cast<void*>(block.base))));
  Result<UniqueFd> made = call.descriptor_of(handle);
  (void)call.release(handle);
  if (!made.ok()) return Status(StatusCode::kUnsupported, made.status().message());
  descriptor = std::move(*made);
  return {};
}

/// Maps another process's virtual memory, which stays alive as long as it is mapped.
Result<CUdeviceptr> map_descriptor(const VirtualMemory& call, Device device, std::size_t bytes, int descriptor) {
  ACCORD_ASSIGN_OR_RETURN(const CUmemGenericAllocationHandle handle, call.open(descriptor));
  Result<CUdeviceptr> base = call.map(handle, bytes, device);
  (void)call.release(handle);  // the mapping keeps the memory
  return base;
}

Result<CUdeviceptr> open_handle(const MemoryHandle& handle) {
  void* base = nullptr;
  ACCORD_RETURN_IF_ERROR(status_of(
      "cudaIpcOpenMemHandle",
      cudaIpcOpenMemHandle(&base, std::bit_cast<cudaIpcMemHandle_t>(handle.bytes), cudaIpcMemLazyEnablePeerAccess)));
  return reinterpret_cast<CUdeviceptr>(base);
}

/// Memory of other processes that this one has opened, by the address that open_shared() returned. The same address
/// may be opened several times.
class OpenedMemory {
 public:
  static OpenedMemory& instance() {
    static auto* const all = new OpenedMemory;  // for threads that outlive static objects
    return *all;
  }
  void add(void* memory, const Block& block) {
    const std::lock_guard lock(mutex_);
    opened_.emplace(memory, block);
  }
  Block take(void* memory) {
    const std::lock_guard lock(mutex_);
    const auto found = opened_.find(memory);
    if (found == opened_.end()) return {};
    const Block block = found->second;
    opened_.erase(found);
    return block;
  }

 private:
  std::mutex mutex_;
  std::multimap<void*, Block> opened_;
};

}  // namespace

Status reach(Device from, Device to, void* memory, std::size_t bytes) {
  if (from == to) return {};
  const DeviceScope scope(from);
  ACCORD_RETURN_IF_ERROR(scope.status());
  int can = 0;
  ACCORD_RETURN_IF_ERROR(status_of("cudaDeviceCanAccessPeer", cudaDeviceCanAccessPeer(&can, from.index, to.index)));
  if (can == 0)
    return Status(StatusCode::kUnsupported,
                  fmt::format("{} cannot access the memory of {}", to_string(from), to_string(to)));
  ACCORD_ASSIGN_OR_RETURN(const VirtualMemory* const call, virtual_memory());
  Block block;
  {
    const DeviceScope owner(to);  // the driver finds an address only in its own context
    ACCORD_RETURN_IF_ERROR(owner.status());
    ACCORD_ASSIGN_OR_RETURN(block, block_of(*call, memory, bytes));
  }
  if (block.is_virtual) return call->grant(block.base, block.bytes, from);
  const cudaError_t result = cudaDeviceEnablePeerAccess(to.index, 0);
  if (result == cudaErrorPeerAccessAlreadyEnabled) {
    (void)cudaGetLastError();
    return {};
  }
  return status_of("cudaDeviceEnablePeerAccess", result);
}

Result<MemoryHandle> share(Device device, void* memory, std::size_t bytes, UniqueFd& descriptor) {
  const DeviceScope scope(device);
  ACCORD_RETURN_IF_ERROR(scope.status());
  ACCORD_ASSIGN_OR_RETURN(const VirtualMemory* const call, virtual_memory());
  ACCORD_ASSIGN_OR_RETURN(const Block block, block_of(*call, memory, bytes));
  MemoryHandle handle{.allocated = block.bytes, .offset = reinterpret_cast<CUdeviceptr>(memory) - block.base};
  if (block.is_virtual) {
    ACCORD_RETURN_IF_ERROR(export_to(*call, block, descriptor));
    return handle;
  }
  cudaIpcMemHandle_t shared = {};
  ACCORD_RETURN_IF_ERROR(
      status_of("cudaIpcGetMemHandle", cudaIpcGetMemHandle(&shared, reinterpret_cast<void*>(block.base))));
  static_assert(sizeof(shared) == sizeof(handle.bytes));
  handle.bytes = std::bit_cast<decltype(handle.bytes)>(shared);
  return handle;
}

Result<void*> open_shared(Device device, const MemoryHandle& handle, int descriptor) {
  const DeviceScope scope(device);
  ACCORD_RETURN_IF_ERROR(scope.status());
  ACCORD_ASSIGN_OR_RETURN(const VirtualMemory* const call, virtual_memory());
  const bool is_virtual = descriptor >= 0;
  const Result<CUdeviceptr> base =
      is_virtual ? map_descriptor(*call, device, handle.allocated, descriptor) : open_handle(handle);
  if (!base.ok()) return Status(StatusCode::kUnsupported, base.status().message());
  void* const memory = reinterpret_cast<void*>(*base + handle.offset);
  OpenedMemory::instance().add(memory, {*base, handle.allocated, is_virtual});
  return memory;
}

Status close_shared(Device device, void* memory) {
  const DeviceScope scope(device);
  ACCORD_RETURN_IF_ERROR(scope.status());
  const Block block = OpenedMemory::instance().take(memory);
  if (!block.is_virtual)
    return status_of("cudaIpcCloseMemHandle", cudaIpcCloseMemHandle(reinterpret_cast<void*>(block.base)));
  ACCORD_ASSIGN_OR_RETURN(const VirtualMemory* const call, virtual_memory());
  return call->unmap(block.base, block.bytes);
}

}  // namespace accord::device::cuda
