// The file begins with a page that records which devices have joined and how many have bound a part. The parts
// follow.
#include "device/host_multicast.hpp"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>

#include "base/rounding.hpp"
#include "device/host_runtime.hpp"

namespace accord::testing {
namespace {

constexpr std::size_t kPage = 4096;
constexpr std::size_t kGranularity = std::size_t{64} << 10;
constexpr int kMaxDevices = 64;

struct Head {
  std::atomic<int> joined;
  std::atomic<int> bound;
  int devices;
  std::size_t bytes;
  std::atomic<int> has[kMaxDevices];  ///< 1 + the index of the device that has joined
};
static_assert(sizeof(Head) <= kPage);

/// One device's handle.
struct Joined {
  Head* head = nullptr;
  int number = 0;
  std::byte* all = nullptr;

  std::byte* part(int number_of) const {
    return reinterpret_cast<std::byte*>(head) + kPage + head->bytes * static_cast<std::size_t>(number_of);
  }
  std::size_t file_bytes() const { return kPage + head->bytes * static_cast<std::size_t>(head->devices); }
};

std::mutex mutex;
std::map<const std::byte*, Joined> by_all;

Result<Head*> map_file(std::string_view call, int file, std::size_t bytes) {
  void* const memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (memory == MAP_FAILED) return error(call, "the memory cannot be mapped");
  return static_cast<Head*>(memory);
}

Result<device::Multicast> add_device(std::string_view call, Device device, Head* head) {
  Joined joined{.head = head};
  for (int i = 0; i < head->joined.load(); ++i)
    if (head->has[i].load() == device.index + 1) return error(call, "the device has already joined");
  joined.number = head->joined.fetch_add(1);
  if (joined.number >= head->devices) return error(call, "more devices joined than it was created for");
  head->has[joined.number].store(device.index + 1);
  return device::Multicast{.handle = new Joined(joined)};
}

}  // namespace

std::vector<std::byte*> addresses_of_all(const std::byte* at) {
  const std::lock_guard lock(mutex);
  const auto next = by_all.upper_bound(at);
  if (next != by_all.begin()) {
    const auto& [all, joined] = *std::prev(next);
    const auto offset = static_cast<std::size_t>(at - all);
    if (offset < joined.head->bytes && joined.head->bound.load() == joined.head->devices) {
      std::vector<std::byte*> places;
      for (int i = 0; i < joined.head->devices; ++i) places.push_back(joined.part(i) + offset);
      return places;
    }
  }
  std::fputs("a kernel accesses multicast memory that does not exist, or that not all devices have bound\n", stderr);
  std::abort();
}

Result<std::string> HostRuntime::identity(Device device) {
  const std::lock_guard lock(mutex_);
  ACCORD_RETURN_IF_ERROR(pop_failure("identity"));
  ACCORD_RETURN_IF_ERROR(check("identity", device));
  return fmt::format("device {}", device.index);
}

Result<std::size_t> HostRuntime::multicast_bytes(Device device, int devices, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  ACCORD_RETURN_IF_ERROR(pop_failure("multicast_bytes"));
  ACCORD_RETURN_IF_ERROR(check("multicast_bytes", device));
  if (devices > kMaxDevices) return Status(StatusCode::kUnsupported, "too many devices for the switch");
  return round_up(bytes, kGranularity);
}

Result<device::Multicast> HostRuntime::create_multicast(Device device, int devices, std::size_t bytes,
                                                        UniqueFd& descriptor) {
  const std::lock_guard lock(mutex_);
  ACCORD_RETURN_IF_ERROR(pop_failure("create_multicast"));
  ACCORD_RETURN_IF_ERROR(check("create_multicast", device));
  if (bytes == 0 || bytes % kGranularity != 0)
    return error("create_multicast", "the size is not one that multicast_bytes returns");
  const std::size_t total_bytes = kPage + bytes * static_cast<std::size_t>(devices);
  UniqueFd file(::memfd_create("accord-test-multicast", MFD_CLOEXEC));
  if (!file.valid() || ::ftruncate(file.get(), static_cast<off_t>(total_bytes)) != 0)
    return error("create_multicast", "no memory is available");
  ACCORD_ASSIGN_OR_RETURN(Head* const head, map_file("create_multicast", file.get(), total_bytes));
  head->devices = devices;
  head->bytes = bytes;
  descriptor = std::move(file);
  ACCORD_ASSIGN_OR_RETURN(const device::Multicast created, add_device("create_multicast", device, head));
  multicasts_.insert(created.handle);
  return created;
}

Result<device::Multicast> HostRuntime::join_multicast(Device device, int descriptor, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  ACCORD_RETURN_IF_ERROR(pop_failure("join_multicast"));
  ACCORD_RETURN_IF_ERROR(check("join_multicast", device));
  ACCORD_ASSIGN_OR_RETURN(Head* const head, map_file("join_multicast", descriptor, kPage));
  const std::size_t total_bytes = kPage + head->bytes * static_cast<std::size_t>(head->devices);
  const bool fits = head->bytes == bytes;
  ::munmap(head, kPage);
  if (!fits) return error("join_multicast", "the size differs from that of the creator");
  ACCORD_ASSIGN_OR_RETURN(Head* const mapped, map_file("join_multicast", descriptor, total_bytes));
  const Result<device::Multicast> created = add_device("join_multicast", device, mapped);
  if (created.ok())
    multicasts_.insert(created->handle);
  else
    ::munmap(mapped, total_bytes);
  return created;
}

Status HostRuntime::bind_multicast(Device device, device::Multicast& joined) {
  const std::lock_guard lock(mutex_);
  ACCORD_RETURN_IF_ERROR(pop_failure("bind_multicast"));
  ACCORD_RETURN_IF_ERROR(check("bind_multicast", device));
  if (!multicasts_.contains(joined.handle)) return error("bind_multicast", "it was not joined");
  auto& device_part = *static_cast<Joined*>(joined.handle);
  if (device_part.head->joined.load() < device_part.head->devices)
    return error("bind_multicast", "not all devices have joined: CUDA would block");
  void* const all = ::mmap(nullptr, device_part.head->bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (all == MAP_FAILED) return error("bind_multicast", "no addresses are available");
  device_part.all = static_cast<std::byte*>(all);
  joined.own = device_part.part(device_part.number);
  joined.all = device_part.all;
  std::memset(joined.own, 0xA5, device_part.head->bytes);
  device_part.head->bound.fetch_add(1);
  const std::lock_guard map_lock(mutex);
  by_all[device_part.all] = device_part;
  return {};
}

Status HostRuntime::leave_multicast(Device device, const device::Multicast& joined) {
  const std::lock_guard lock(mutex_);
  ACCORD_RETURN_IF_ERROR(pop_failure("leave_multicast"));
  ACCORD_RETURN_IF_ERROR(check("leave_multicast", device));
  if (multicasts_.erase(joined.handle) == 0) return error("leave_multicast", "it was not joined");
  const std::unique_ptr<Joined> device_part(static_cast<Joined*>(joined.handle));
  if (device_part->all != nullptr) {
    const std::lock_guard map_lock(mutex);
    by_all.erase(device_part->all);
    ::munmap(device_part->all, device_part->head->bytes);
  }
  ::munmap(device_part->head, device_part->file_bytes());
  return {};
}

}  // namespace accord::testing
