// NCCL's own memory, registrations, windows and operators.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <set>
#include <thread>

#include "base/rounding.hpp"
#include "device/nccl_world.hpp"

namespace accord::testing::nccl {
namespace {

constexpr std::size_t kWindowAlignment = 4096;
constexpr std::chrono::milliseconds kSlowRegistration(100);
constexpr int kFirstWithSeveralAllocations = 23000;

/// Stores where a window over the memory would be. Fails if NCCL makes none, which it finds out on each rank by itself.
ncclResult_t find_place(const ncclComm& comm, const void* memory, std::size_t bytes, std::string& place,
                        const void*& begin) {
  const auto behind = HostRuntime::instance().mapped_memory(comm.where(), memory, bytes);
  if (!behind.ok() || behind->allocations == 0)
    return fail(ncclUnhandledCudaError, "ncclCommWindowRegister: cuMemRetainAllocationHandle: invalid argument");
  if (behind->allocations > 1 && World::instance().version < kFirstWithSeveralAllocations)
    return fail(ncclInvalidArgument, "ncclCommWindowRegister: the addresses span several physical allocations");
  if (behind->offset % kWindowAlignment != 0)
    return fail(ncclInvalidArgument, "ncclCommWindowRegister: the address must be suitably aligned");
  begin = static_cast<const char*>(memory) - behind->offset;
  place = fmt::format("{} {}", behind->offset, behind->bytes);
  std::set<int> others;
  int same = -1;
  for (const auto& [handle, window] : comm.windows) {
    others.insert(window.number);
    if (window.begin == begin) same = std::max(same, window.number);
  }
  place += fmt::format(" beside {} in {}", fmt::join(others, " "), same);
  return ncclSuccess;
}

}  // namespace

extern "C" {

ncclResult_t ncclMemAlloc(void** memory, std::size_t bytes) {
  World& world = World::instance();
  const std::lock_guard lock(world.mutex);
  world.log_call(-1, fmt::format("ncclMemAlloc bytes={}", bytes));
  if (const ncclResult_t failure = world.pop_failure("ncclMemAlloc", -1); failure != ncclSuccess) return failure;
  if (memory == nullptr || bytes == 0) return fail(ncclInvalidArgument, "ncclMemAlloc: nothing");
  const Device device{DeviceType::kCuda, static_cast<std::int16_t>(HostRuntime::current_device())};
  const auto allocated =
      HostRuntime::instance().allocate_mapped(device, {round_up(bytes, HostRuntime::kMapGranularity)});
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
  std::unique_lock lock(world.mutex);
  ncclResult_t result = ncclSuccess;
  const auto found = begin("ncclCommRegister", comm, Needs::kReadiness, fmt::format(" bytes={}", bytes), result);
  if (found == nullptr) return result;
  if (handle == nullptr || bytes == 0 || !HostRuntime::instance().holds(memory, bytes))
    return fail(ncclInvalidArgument, "ncclCommRegister: no device can access the memory");
  if (world.pop_hang("ncclCommRegister", found->home_rank)) {
    ++found->in_calls;
    lock.unlock();
    std::this_thread::sleep_for(kSlowRegistration);
    lock.lock();
    --found->in_calls;
  }
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
  if (window == nullptr || bytes == 0 || !HostRuntime::instance().holds(memory, bytes))
    return fail(ncclInvalidArgument, "ncclCommWindowRegister: no device can access the memory");
  *window = nullptr;
  std::string place;
  const int number = found->window_collectives++;
  if (world.has_windows) {
    const void* begin = nullptr;
    if (const ncclResult_t wrong = find_place(*found, memory, bytes, place, begin); wrong != ncclSuccess) return wrong;
    auto created = std::make_unique<ncclWindow_vidmem>();
    *window = created.get();
    found->windows[*window] = {std::move(created), number, begin};
    ++world.counts.windows;
  }
  // NCCL itself does not notice that windows lie at different places.
  const auto compare = [](Arrivals& arrivals) {
    const auto& first = arrivals.begin()->second;
    const auto is_alike = [&](const auto& one) { return one.second.place == first.place; };
    if (std::all_of(arrivals.begin(), arrivals.end(), is_alike)) return;
    for (auto& [rank, each] : arrivals) {
      each.comm->error = ncclInvalidUsage;
      each.comm->error_text = "windows lie at different places on different ranks";
    }
  };
  return rendezvous(lock, "WindowRegister", {.comm = comm, .child = nullptr, .place = place},
                    static_cast<std::size_t>(found->size), compare);
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
