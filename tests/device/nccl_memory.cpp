// NCCL's own memory, registrations, windows and operators.
#include <fmt/format.h>

#include <cstring>

#include "device/nccl_world.hpp"

namespace accord::testing::nccl {
namespace {

constexpr std::size_t kWindowAlignment = 4096;

}  // namespace

extern "C" {

ncclResult_t ncclMemAlloc(void** memory, std::size_t bytes) {
  World& world = World::instance();
  const std::lock_guard lock(world.mutex);
  world.log_call(-1, fmt::format("ncclMemAlloc bytes={}", bytes));
  if (const ncclResult_t failure = world.pop_failure("ncclMemAlloc", -1); failure != ncclSuccess) return failure;
  if (memory == nullptr || bytes == 0) return fail(ncclInvalidArgument, "ncclMemAlloc: nothing");
  const Device device{DeviceType::kCuda, static_cast<std::int16_t>(HostRuntime::current_device())};
  const auto allocated = HostRuntime::instance().allocate_virtual(device, bytes);
  if (!allocated.ok()) return fail(ncclUnhandledCudaError, allocated.status().message());
  *memory = *allocated;
  return ncclSuccess;
}

ncclResult_t ncclMemFree(void* memory) {
  World& world = World::instance();
  const std::lock_guard lock(world.mutex);
  world.log_call(-1, "ncclMemFree");
  if (const ncclResult_t failure = world.pop_failure("ncclMemFree", -1); failure != ncclSuccess) return failure;
  HostRuntime& runtime = HostRuntime::instance();
  const auto device = runtime.device_of(memory);
  if (!device.ok() || !device->has_value())
    return fail(ncclInvalidArgument, "ncclMemFree: the memory is not from ncclMemAlloc");
  const Status released = runtime.release(**device, memory);
  return released.ok() ? ncclSuccess : fail(ncclInvalidArgument, released.message());
}

ncclResult_t ncclCommRegister(ncclComm_t comm, void* memory, std::size_t bytes, void** handle) {
  World& world = World::instance();
  const std::lock_guard lock(world.mutex);
  ncclResult_t result = ncclSuccess;
  const auto found = begin("ncclCommRegister", comm, Needs::kReadiness, fmt::format(" bytes={}", bytes), result);
  if (found == nullptr) return result;
  if (handle == nullptr || bytes == 0 || !HostRuntime::instance().holds(memory, bytes))
    return fail(ncclInvalidArgument, "ncclCommRegister: no device can access the memory");
  auto created = std::make_unique<char>();
  *handle = created.get();
  found->registrations[*handle] = std::move(created);
  ++world.counts.registrations;
  return ncclSuccess;
}

ncclResult_t ncclCommDeregister(ncclComm_t comm, void* handle) {
  World& world = World::instance();
  const std::lock_guard lock(world.mutex);
  ncclResult_t result = ncclSuccess;
  const auto found = begin("ncclCommDeregister", comm, Needs::kExistence, "", result);
  if (found == nullptr) return result;
  if (found->registrations.erase(handle) == 0) return fail(ncclInvalidArgument, "ncclCommDeregister: no such handle");
  --world.counts.registrations;
  return ncclSuccess;
}

ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void* memory, std::size_t bytes, ncclWindow_t* window, int flags) {
  World& world = World::instance();
  std::unique_lock lock(world.mutex);
  ncclResult_t result = ncclSuccess;
  const std::string line = fmt::format(" bytes={} flags={}", bytes, flags);
  const auto found = begin("ncclCommWindowRegister", comm, Needs::kReadiness, line, result);
  if (found == nullptr) return result;
  if (window == nullptr || bytes == 0 || !HostRuntime::instance().holds(memory, bytes) ||
      reinterpret_cast<std::uintptr_t>(memory) % kWindowAlignment != 0)
    return fail(ncclInvalidArgument,
                "ncclCommWindowRegister: no device can access the memory, or it is not aligned to 4096 bytes");
  *window = nullptr;
  if (world.has_windows) {
    auto created = std::make_unique<ncclWindow_vidmem>();
    *window = created.get();
    found->windows[*window] = std::move(created);
    ++world.counts.windows;
  }
  return rendezvous(lock, "WindowRegister", {.comm = comm, .child = nullptr}, static_cast<std::size_t>(found->size),
                    [](Arrivals&) {});
}

ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t window) {
  World& world = World::instance();
  const std::lock_guard lock(world.mutex);
  ncclResult_t result = ncclSuccess;
  const auto found = begin("ncclCommWindowDeregister", comm, Needs::kExistence, "", result);
  if (found == nullptr) return result;
  if (found->windows.erase(window) == 0) return fail(ncclInvalidArgument, "ncclCommWindowDeregister: no such window");
  --world.counts.windows;
  return ncclSuccess;
}

ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t* op, void* scalar, ncclDataType_t dtype,
                                      ncclScalarResidence_t residence, ncclComm_t comm) {
  World& world = World::instance();
  const std::lock_guard lock(world.mutex);
  ncclResult_t result = ncclSuccess;
  const bool on_device = residence == ncclScalarDevice;
  const std::string line = fmt::format(" dtype={} residence={}", name_of(dtype), on_device ? "device" : "host");
  const auto found = begin("ncclRedOpCreatePreMulSum", comm, Needs::kReadiness, line, result);
  if (found == nullptr) return result;
  const std::size_t bytes = size_of(dtype);
  if (op == nullptr || scalar == nullptr || bytes == 0 || (!on_device && residence != ncclScalarHostImmediate))
    return fail(ncclInvalidArgument, "ncclRedOpCreatePreMulSum: op, scalar, dtype or residence is invalid");
  if (on_device && !HostRuntime::instance().holds(scalar, bytes))
    return fail(ncclInvalidArgument, "ncclRedOpCreatePreMulSum: no device can access the scalar");
  Factor factor{.dtype = dtype, .memory = on_device ? scalar : nullptr, .value = {}};
  if (!on_device) std::memcpy(factor.value.data(), scalar, bytes);
  *op = static_cast<ncclRedOp_t>(found->next_redop++);
  found->redops[*op] = factor;
  ++world.counts.redops;
  return ncclSuccess;
}

ncclResult_t ncclRedOpDestroy(ncclRedOp_t op, ncclComm_t comm) {
  World& world = World::instance();
  const std::lock_guard lock(world.mutex);
  ncclResult_t result = ncclSuccess;
  const auto found = begin("ncclRedOpDestroy", comm, Needs::kExistence, "", result);
  if (found == nullptr) return result;
  if (found->redops.erase(op) == 0)
    return fail(ncclInvalidArgument, "ncclRedOpDestroy: the op is not from ncclRedOpCreatePreMulSum");
  --world.counts.redops;
  return ncclSuccess;
}

}  // extern "C"

}  // namespace accord::testing::nccl
