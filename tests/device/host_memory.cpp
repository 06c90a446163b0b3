// Memory of devices. Large pieces are memory files, which other processes open through /proc, as they open a device's
// memory by a handle. The file of virtual memory is passed to them.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <bit>
#include <cstring>
#include <iterator>
#include <new>

#include "base/rounding.hpp"
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
    // A process that has opened the memory and uses it after this is killed by SIGBUS. Virtual memory is kept by those
    // who have it mapped.
    if (!allocation.is_virtual && ::ftruncate(allocation.file, 0) != 0)
      return error(call, "the file of the memory cannot be truncated");
    ::munmap(memory, allocation.bytes);
    ::close(allocation.file);
  }
  return {};
}

Result<void*> HostRuntime::allocate_virtual(Device device, std::size_t bytes) {
  ACCORD_ASSIGN_OR_RETURN(void* const memory,
                          allocate(device, round_up(bytes, kMinShareableBytes), /*alignment=*/4096));
  const std::lock_guard lock(mutex_);
  allocations_[memory].is_virtual = true;
  return memory;
}

Result<device::MemoryHandle> HostRuntime::share(Device device, void* memory, std::size_t bytes, UniqueFd& descriptor) {
  const std::lock_guard lock(mutex_);
  ACCORD_RETURN_IF_ERROR(pop_failure("share"));
  const Allocation* const found = allocation_of(memory, bytes);
  if (found == nullptr || found->device != device)
    return error("share", "the memory is not in one allocation of this device");
  if (found->file < 0)
    return error("share", fmt::format("only allocations of {} bytes and more can be shared", kMinShareableBytes));
  const auto* const begin = static_cast<const std::byte*>(std::prev(allocations_.upper_bound(memory))->first);
  device::MemoryHandle handle{.allocated = found->bytes,
                              .offset = static_cast<std::size_t>(static_cast<std::byte*>(memory) - begin)};
  if (found->is_virtual) {
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
  const std::lock_guard lock(mutex_);
  ACCORD_RETURN_IF_ERROR(pop_failure("open_shared"));
  ACCORD_RETURN_IF_ERROR(check("open_shared", device));
  void* memory = nullptr;
  if (descriptor >= 0) {
    memory = map_file(descriptor, handle.allocated);
  } else {
    Shared shared;
    std::memcpy(&shared, handle.bytes.data(), sizeof(shared));
    if (shared.process == ::getpid()) return error("open_shared", "the memory belongs to this process");
    const UniqueFd file(::open(fmt::format("/proc/{}/fd/{}", shared.process, shared.file).c_str(), O_RDWR | O_CLOEXEC));
    if (file.valid()) memory = map_file(file.get(), handle.allocated);
  }
  if (memory == nullptr) return error("open_shared", "there is no such memory");
  opened_[memory] = handle.allocated;
  return static_cast<void*>(static_cast<std::byte*>(memory) + handle.offset);
}

Status HostRuntime::close_shared(Device device, void* memory) {
  const std::lock_guard lock(mutex_);
  ACCORD_RETURN_IF_ERROR(pop_failure("close_shared"));
  ACCORD_RETURN_IF_ERROR(check("close_shared", device));
  auto found = opened_.upper_bound(memory);
  if (found == opened_.begin()) return error("close_shared", "the memory was not opened by open_shared");
  --found;
  if (memory >= static_cast<std::byte*>(found->first) + found->second)
    return error("close_shared", "the memory was not opened by open_shared");
  ::munmap(found->first, found->second);
  opened_.erase(found);
  return {};
}

}  // namespace accord::testing
