// One device creates a multicast object, and the others obtain it through a file descriptor. Each device is added to
// the object, binds memory of its own, and maps both: the memory, and the object, whose addresses stand for the
// memory of all devices. A device's part is torn down in the reverse order.
#include "device/cuda/multicast.hpp"

#include <cuda.h>
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "base/rounding.hpp"
#include "base/text.hpp"
#include "device/cuda/device_scope.hpp"
#include "device/cuda/virtual_memory.hpp"

namespace accord::device::cuda {
namespace {

/// Driver calls that older drivers lack.
struct Calls {
  const VirtualMemory* memory = nullptr;
  decltype(&cuDeviceGetAttribute) device_get_attribute = nullptr;
  decltype(&cuMulticastGetGranularity) multicast_get_granularity = nullptr;
  decltype(&cuMulticastCreate) multicast_create = nullptr;
  decltype(&cuMulticastAddDevice) multicast_add_device = nullptr;
  decltype(&cuMulticastBindMem) multicast_bind_mem = nullptr;
  decltype(&cuMulticastUnbind) multicast_unbind = nullptr;

  Status ok(std::string_view call, CUresult result) const { return memory->ok(call, result); }
};

Result<Calls> load_calls() {
  Calls calls;
  ACCORD_ASSIGN_OR_RETURN(calls.memory, virtual_memory());
  void* const library = calls.memory->driver->library;
  for (const Status& found : {
           look_up(library, "cuDeviceGetAttribute", calls.device_get_attribute),
           look_up(library, "cuMulticastGetGranularity", calls.multicast_get_granularity),
           look_up(library, "cuMulticastCreate", calls.multicast_create),
           look_up(library, "cuMulticastAddDevice", calls.multicast_add_device),
           look_up(library, "cuMulticastBindMem", calls.multicast_bind_mem),
           look_up(library, "cuMulticastUnbind", calls.multicast_unbind),
       })
    ACCORD_RETURN_IF_ERROR(found);
  return calls;
}

Result<const Calls*> calls() {
  // never freed, for threads that outlive static objects
  static const auto* const loaded = new Result<Calls>(load_calls());
  ACCORD_RETURN_IF_ERROR(loaded->status());
  return &**loaded;
}

/// A device's part. release() releases everything that is not zero.
struct Part {
  std::size_t bytes = 0;
  CUdevice device = 0;
  CUmemGenericAllocationHandle object = 0, memory = 0;
  bool is_bound = false;
  CUdeviceptr own = 0, all = 0;
};

void release(const Calls& call, const Part& part) {
  if (part.all != 0) (void)call.memory->unmap(part.all, part.bytes);
  if (part.is_bound) (void)call.multicast_unbind(part.object, part.device, 0, part.bytes);
  if (part.own != 0) (void)call.memory->unmap(part.own, part.bytes);
  if (part.memory != 0) (void)call.memory->release(part.memory);
  if (part.object != 0) (void)call.memory->release(part.object);
}

CUmemAllocationProp memory_on(CUdevice device) {
  CUmemAllocationProp memory = {};
  memory.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  memory.requestedHandleTypes = kDescriptorHandle;
  memory.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  memory.location.id = device;
  return memory;
}

CUmulticastObjectProp object_of(int devices, std::size_t bytes) {
  CUmulticastObjectProp object = {};
  object.numDevices = static_cast<unsigned>(devices);
  object.size = bytes;
  object.handleTypes = kDescriptorHandle;
  return object;
}

/// Adds the device to the object, which `part` holds.
Result<Multicast> add(const Calls& call, Part part) {
  const Status added = call.ok("cuMulticastAddDevice", call.multicast_add_device(part.object, part.device));
  if (added.ok()) return Multicast{.handle = new Part(part)};
  release(call, part);
  return Status(StatusCode::kUnsupported, added.message());
}

}  // namespace

Result<std::size_t> multicast_bytes(Device device, int devices, std::size_t bytes) {
  const DeviceScope scope(device);
  ACCORD_RETURN_IF_ERROR(scope.status());
  ACCORD_ASSIGN_OR_RETURN(const Calls* const call, calls());
  int has = 0;
  ACCORD_RETURN_IF_ERROR(call->ok(
      "cuDeviceGetAttribute", call->device_get_attribute(&has, CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED, device.index)));
  if (has == 0)
    return Status(StatusCode::kUnsupported,
                  fmt::format("{} is not connected to a switch that supports multicast", to_string(device)));
  const CUmulticastObjectProp object = object_of(devices, bytes);
  const CUmemAllocationProp memory = memory_on(device.index);
  std::size_t object_granularity = 0, memory_granularity = 0;
  const Status status =
      call->ok("cuMulticastGetGranularity",
               call->multicast_get_granularity(&object_granularity, &object, CU_MULTICAST_GRANULARITY_MINIMUM));
  if (!status.ok()) return Status(StatusCode::kUnsupported, status.message());
  ACCORD_RETURN_IF_ERROR(call->ok(
      "cuMemGetAllocationGranularity",
      call->memory->get_allocation_granularity(&memory_granularity, &memory, CU_MEM_ALLOC_GRANULARITY_MINIMUM)));
  return round_up(bytes, std::max(object_granularity, memory_granularity));
}

Result<Multicast> create_multicast(Device device, int devices, std::size_t bytes, UniqueFd& descriptor) {
  const DeviceScope scope(device);
  ACCORD_RETURN_IF_ERROR(scope.status());
  ACCORD_ASSIGN_OR_RETURN(const Calls* const call, calls());
  Part part{.bytes = bytes, .device = device.index};
  const CUmulticastObjectProp object = object_of(devices, bytes);
  const Status created = call->ok(fmt::format("cuMulticastCreate of {} for {} devices", bytes_text(bytes), devices),
                                  call->multicast_create(&part.object, &object));
  if (!created.ok()) return Status(StatusCode::kUnsupported, created.message());
  Result<UniqueFd> shared = call->memory->descriptor_of(part.object);
  if (!shared.ok()) {
    release(*call, part);
    return Status(StatusCode::kUnsupported, shared.status().message());
  }
  descriptor = std::move(*shared);
  return add(*call, part);
}

Result<Multicast> join_multicast(Device device, int descriptor, std::size_t bytes) {
  const DeviceScope scope(device);
  ACCORD_RETURN_IF_ERROR(scope.status());
  ACCORD_ASSIGN_OR_RETURN(const Calls* const call, calls());
  const Result<CUmemGenericAllocationHandle> object = call->memory->open(descriptor);
  if (!object.ok()) return Status(StatusCode::kUnsupported, object.status().message());
  return add(*call, {.bytes = bytes, .device = device.index, .object = *object});
}

Status bind_multicast(Device device, Multicast& joined) {
  const DeviceScope scope(device);
  ACCORD_RETURN_IF_ERROR(scope.status());
  ACCORD_ASSIGN_OR_RETURN(const Calls* const call, calls());
  auto& part = *static_cast<Part*>(joined.handle);
  const CUmemAllocationProp memory = memory_on(part.device);
  ACCORD_RETURN_IF_ERROR(call->ok(fmt::format("cuMemCreate of {} on {}", bytes_text(part.bytes), to_string(device)),
                                  call->memory->create(&part.memory, part.bytes, &memory, 0)));
  ACCORD_RETURN_IF_ERROR(
      call->ok("cuMulticastBindMem", call->multicast_bind_mem(part.object, 0, part.memory, 0, part.bytes, 0)));
  part.is_bound = true;
  ACCORD_ASSIGN_OR_RETURN(part.own, call->memory->map(part.memory, part.bytes, device));
  ACCORD_ASSIGN_OR_RETURN(part.all, call->memory->map(part.object, part.bytes, device));
  joined.own = reinterpret_cast<std::byte*>(part.own);
  joined.all = reinterpret_cast<std::byte*>(part.all);
  return {};
}

Status leave_multicast(Device device, const Multicast& joined) {
  const std::unique_ptr<Part> part(static_cast<Part*>(joined.handle));
  const DeviceScope scope(device);
  ACCORD_RETURN_IF_ERROR(scope.status());
  ACCORD_ASSIGN_OR_RETURN(const Calls* const call, calls());
  release(*call, *part);
  return {};
}

}  // namespace accord::device::cuda
