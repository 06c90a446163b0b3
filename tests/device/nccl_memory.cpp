// NCCL's own memory, registrations, windows and operators.
#include <fmt/format.h>

#include <cstring>

#include "base/rounding.hpp"
#include "device/nccl_world.hpp"

namespace accord::testing::nccl {
namespace {

constexpr std::size_t kWindowAlignment = 4096;

}  // namespace

extern "C" {

ncclResult_t ncclMemAlloc(void** memory, std::size_t bytes) {
  World& world = World::instance();
  const std::lock_guard lock(world.mutex);
  world.note(-1, fmt::format("ncclMemAlloc bytes={}", bytes));
  if (const ncclResult_t failure = world.take_failure("ncclMemAlloc", -1); failure != ncclSuccess) return failure;
  if (memory == nullptr || bytes == 0) return fail(ncclInvalidArgument, "ncclMemAlloc: nothing");
  const Device device{DeviceType::kCuda, static_cast<std::int16_t>(HostRuntime::current_device())};
  const auto allocated = HostRuntime::instance().allocate(device, round_up(bytes, kWindowAlignment), kWindowAlignment);
  if (!allocated.ok()) return fail(ncclUnhandledCudaError, allocated.status().message());
  *memory = *allocated;
  return ncclSuccess;
}

ncclResult_t ncclMemFree(void* memory) {
  World& world = World::instance();
  const std::lock_guard lock(world.mutex);
  world.note(-1, "ncclMemFree");
  if (const ncclResult_t failure = world.take_failure("ncclMemFree", -1); failure != ncclSuccess) return failure;
  HostRuntime& runtime = HostRuntime::instance();
  const auto device = runtime.device_of(memory);
  if (!device.ok() || !device->has_value()) return fail(ncclInvalidArgument, "ncclMemFree: not of ncclMemAlloc");
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
    return fail(ncclInvalidArgument, "ncclCommRegister: not in memory that a device reaches");
  auto made = std::make_unique<char>();
  *handle = made.get();
  found->registrations[*handle] = std::move(made);
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
                "ncclCommWindowRegister: not in memory that a device reaches, or not aligned to 4096 bytes");
  *window = nullptr;
  if (world.has_windows) {
    auto made = std::make_unique<ncclWindow_vidmem>();
    *window = made.get();
    found->windows[*window] = std::move(made);
    ++world.counts.windows;
  }
  return meet(lock, "WindowRegister", {.comm = comm, .child = nullptr}, static_cast<std::size_t>(found->size),
              [](Visits&) {});
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
    return fail(ncclInvalidArgument, "ncclRedOpCreatePreMulSum: op, scalar, dtype or residence");
  if (on_device && !HostRuntime::instance().holds(scalar, bytes))
    return fail(ncclInvalidArgument, "ncclRedOpCreatePreMulSum: no device reaches the scalar");
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
    return fail(ncclInvalidArgument, "ncclRedOpDestroy: not of ncclRedOpCreatePreMulSum");
  --world.counts.redops;
  return ncclSuccess;
}

}  // extern "C"

}  // namespace accord::testing::nccl
