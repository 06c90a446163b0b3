// Memory of devices. Large pieces are memory files, which other processes open through /proc, as they open a device's
// memory by a handle. A process that has opened one holds a lock on its file, so that the owner notices if it releases
// the memory too early. The file of memory that was mapped is passed to the other process.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <new>
#include <numeric>

#include "device/host_runtime.hpp"

namespace accord::testing {
namespace {

/// Memory of at least this many bytes is a file.
constexpr std::size_t kMinShareableBytes = std::size_t{64} << 10;

struct Shared {
  int process = 0;
  int file = -1;
};

void* map_file(int file, std::size_t bytes) {
  void* const memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  return memory == MAP_FAILED ? nullptr : memory;
}

}  // namespace

void* HostRuntime::allocate_memory(std::size_t bytes, std::size_t alignment, std::optional<Device> device) {
  if (bytes == 0) return nullptr;
  int file = -1;
  void* memory = nullptr;
  if (device.has_value() && bytes >= kMinShareableBytes) {
    file = ::memfd_create("accord-test-device", MFD_CLOEXEC);
    if (file < 0 || ::ftruncate(file, static_cast<off_t>(bytes)) != 0 || (memory = map_file(file, bytes)) == nullptr)
      throw std::bad_alloc();
  } else {
    memory = ::operator new(bytes, std::align_val_t(alignment));
  }
  std::memset(memory, 0xA5, bytes);
  allocations_[memory] = {.bytes = bytes, .alignment = alignment, .device = device, .file = file};
  return memory;
}

Status HostRuntime::free_memory(std::string_view call, std::optional<Device> device, void* memory) {
  if (memory == nullptr) return {};
  const auto found = allocations_.find(memory);
  if (found == allocations_.end() || found->second.device != device)
    return error(call, "the memory was not allocated by this call for this device");
  const Allocation allocation = found->second;
  allocations_.erase(found);
  if (allocation.file < 0) {
    ::operator delete(memory, std::align_val_t(allocation.alignment));
  } else {
    // Virtual memory is kept by those who have it mapped.
    if (allocation.mapped.empty() && ::flock(allocation.file, LOCK_EX | LOCK_NB) != 0) {
      std::fputs("memory of a device is released while another process has it open\n", stderr);
      std::abort();
    }
    // A kernel of another process that still uses the memory after this is killed by SIGBUS.
    if (allocation.mapped.empty() && ::ftruncate(allocation.file, 0) != 0)
      return error(call, "the file of the memory cannot be truncated");
    ::munmap(memory, allocation.bytes);
    ::close(allocation.file);
  }
  return {};
}

Result<void*> HostRuntime::allocate_mapped(Device device, std::vector<std::size_t> sizes) {
  const std::lock_guard lock(mutex_);
  ACCORD_RETURN_IF_ERROR(pop_failure("allocate_mapped"));
  ACCORD_RETURN_IF_ERROR(check("allocate_mapped", device));
  if (std::ranges::any_of(sizes, [](std::size_t size) { return size == 0 || size % kMapGranularity != 0; }))
    return error("allocate_mapped", fmt::format("sizes are multiples of {} bytes", kMapGranularity));
  const std::size_t bytes = std::accumulate(sizes.begin(), sizes.end(), std::size_t{0});
  void* const memory = allocate_memory(bytes, kMapGranularity, device);
  allocations_[memory].mapped = std::move(sizes);
  return memory;
}

Result<device::MappedMemory> HostRuntime::mapped_memory(Device device, const void* memory, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  ACCORD_RETURN_IF_ERROR(pop_failure("mapped_memory"));
  ACCORD_RETURN_IF_ERROR(check("mapped_memory", device));
  const Allocation* const found = allocation_of(memory, bytes);
  if (found == nullptr || found->device != device || found->mapped.empty()) return device::MappedMemory{};
  const void* const whole = std::prev(allocations_.upper_bound(memory))->first;
  const std::size_t begin = reinterpret_cast<std::uintptr_t>(memory) - reinterpret_cast<std::uintptr_t>(whole);
  device::MappedMemory behind;
  std::size_t at = 0;
  for (const std::size_t size : found->mapped) {
    if (at + size > begin && at < begin + bytes) {
      if (behind.allocations == 0) behind.offset = begin - at;
      ++behind.allocations;
      behind.bytes += size;
    }
    at += size;
  }
  return behind;
}

Result<device::MemoryHandle> HostRuntime::share(Device device, void* memory, std::size_t bytes, UniqueFd& descriptor) {
  const auto lock = enter(device);
  ACCORD_RETURN_IF_ERROR(pop_failure("share"));
  const Allocation* const found = allocation_of(memory, bytes);
  if (found == nullptr || found->device != device || found->mapped.size() > 1)
    return error("share", "the memory is not in one allocation of this device");
  if (found->file < 0)
    return error("share", fmt::format("only allocations of {} bytes and more can be shared", kMinShareableBytes));
  const auto* const begin = static_cast<const std::byte*>(std::prev(allocations_.upper_bound(memory))->first);
  device::MemoryHandle handle{.allocated = found->bytes,
                              .offset = static_cast<std::size_t>(static_cast<std::byte*>(memory) - begin)};
  if (!found->mapped.empty()) {
    descriptor.reset(::fcntl(found->file, F_DUPFD_CLOEXEC, 0));
    if (!descriptor.valid()) return error("share", "there is no descriptor left");
    return handle;
  }
  const Shared shared{::getpid(), found->file};
  static_assert(sizeof(shared) <= sizeof(handle.bytes));
  std::memcpy(handle.bytes.data(), &shared, sizeof(shared));
  return handle;
}

Result<void*> HostRuntime::open_shared(Device device, const device::MemoryHandle& handle, int descriptor) {
  const auto lock = enter(device);
  ACCORD_RETURN_IF_ERROR(pop_failure("open_shared"));
  ACCORD_RETURN_IF_ERROR(check("open_shared", device));
  UniqueFd file;
  if (descriptor < 0) {
    Shared shared;
    std::memcpy(&shared, handle.bytes.data(), sizeof(shared));
    if (shared.process == ::getpid()) return error("open_shared", "the memory belongs to this process");
    file.reset(::open(fmt::format("/proc/{}/fd/{}", shared.process, shared.file).c_str(), O_RDWR | O_CLOEXEC));
    if (!file.valid() || ::flock(file.get(), LOCK_SH | LOCK_NB) != 0)
      return error("open_shared", "there is no such memory");
  }
  void* const memory = map_file(descriptor < 0 ? file.get() : descriptor, handle.allocated);
  if (memory == nullptr) return error("open_shared", "the memory cannot be mapped");
  opened_[memory] = {handle.allocated, std::move(file)};
  return static_cast<void*>(static_cast<std::byte*>(memory) + handle.offset);
}

Status HostRuntime::close_shared(Device device, void* memory) {
  const auto lock = enter(device);
  ACCORD_RETURN_IF_ERROR(pop_failure("close_shared"));
  ACCORD_RETURN_IF_ERROR(check("close_shared", device));
  auto found = opened_.upper_bound(memory);
  if (found == opened_.begin()) return error("close_shared", "the memory was not opened by open_shared");
  --found;
  if (memory >= static_cast<std::byte*>(found->first) + found->second.bytes)
    return error("close_shared", "the memory was not opened by open_shared");
  ::munmap(found->first, found->second.bytes);
  opened_.erase(found);
  return {};
}

}  // namespace accord::testing
