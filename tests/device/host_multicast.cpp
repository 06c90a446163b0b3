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
constexpr int kMostDevices = 64;

struct Head {
  std::atomic<int> joined;
  std::atomic<int> bound;
  int devices;
  std::size_t bytes;
  std::atomic<int> has[kMostDevices];  ///< 1 + the index of the device that has joined
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
    if (head->has[i].load() == device.index + 1) return error(call, "the device has joined before");
  joined.number = head->joined.fetch_add(1);
  if (joined.number >= head->devices) return error(call, "more devices than it is for");
  head->has[joined.number].store(device.index + 1);
  return device::Multicast{.handle = new Joined(joined)};
}

}  // namespace

std::vector<std::byte*> places_of_all(const std::byte* at) {
  const std::lock_guard lock(mutex);
  const auto behind = by_all.upper_bound(at);
  if (behind != by_all.begin()) {
    const auto& [all, joined] = *std::prev(behind);
    const auto offset = static_cast<std::size_t>(at - all);
    if (offset < joined.head->bytes && joined.head->bound.load() == joined.head->devices) {
      std::vector<std::byte*> places;
      for (int i = 0; i < joined.head->devices; ++i) places.push_back(joined.part(i) + offset);
      return places;
    }
  }
  std::fputs("a kernel touches multicast memory where there is none, or before all have bound their parts\n", stderr);
  std::abort();
}

Result<std::string> HostRuntime::identity(Device device) {
  const std::lock_guard lock(mutex_);
  ACCORD_RETURN_IF_ERROR(take_failure("identity"));
  ACCORD_RETURN_IF_ERROR(check("identity", device));
  return fmt::format("device {}", device.index);
}

Result<std::size_t> HostRuntime::multicast_bytes(Device device, int devices, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  ACCORD_RETURN_IF_ERROR(take_failure("multicast_bytes"));
  ACCORD_RETURN_IF_ERROR(check("multicast_bytes", device));
  if (devices > kMostDevices) return Status(StatusCode::kUnsupported, "too many devices for the switch");
  return round_up(bytes, kGranularity);
}

Result<device::Multicast> HostRuntime::create_multicast(Device device, int devices, std::size_t bytes,
                                                        UniqueFd& descriptor) {
  const std::lock_guard lock(mutex_);
  ACCORD_RETURN_IF_ERROR(take_failure("create_multicast"));
  ACCORD_RETURN_IF_ERROR(check("create_multicast", device));
  if (bytes == 0 || bytes % kGranularity != 0) return error("create_multicast", "not as many bytes as it has to have");
  const std::size_t whole = kPage + bytes * static_cast<std::size_t>(devices);
  UniqueFd file(::memfd_create("accord-test-multicast", MFD_CLOEXEC));
  if (!file.valid() || ::ftruncate(file.get(), static_cast<off_t>(whole)) != 0)
    return error("create_multicast", "there is no memory");
  ACCORD_ASSIGN_OR_RETURN(Head* const head, map_file("create_multicast", file.get(), whole));
  head->devices = devices;
  head->bytes = bytes;
  descriptor = std::move(file);
  ACCORD_ASSIGN_OR_RETURN(const device::Multicast made, add_device("create_multicast", device, head));
  multicasts_.insert(made.handle);
  return made;
}

Result<device::Multicast> HostRuntime::join_multicast(Device device, int descriptor, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  ACCORD_RETURN_IF_ERROR(take_failure("join_multicast"));
  ACCORD_RETURN_IF_ERROR(check("join_multicast", device));
  ACCORD_ASSIGN_OR_RETURN(Head* const head, map_file("join_multicast", descriptor, kPage));
  const std::size_t whole = kPage + head->bytes * static_cast<std::size_t>(head->devices);
  const bool fits = head->bytes == bytes;
  ::munmap(head, kPage);
  if (!fits) return error("join_multicast", "of another size");
  ACCORD_ASSIGN_OR_RETURN(Head* const mapped, map_file("join_multicast", descriptor, whole));
  const Result<device::Multicast> made = add_device("join_multicast", device, mapped);
  if (made.ok())
    multicasts_.insert(made->handle);
  else
    ::munmap(mapped, whole);
  return made;
}

Status HostRuntime::bind_multicast(Device device, device::Multicast& joined) {
  const std::lock_guard lock(mutex_);
  ACCORD_RETURN_IF_ERROR(take_failure("bind_multicast"));
  ACCORD_RETURN_IF_ERROR(check("bind_multicast", device));
  if (!multicasts_.contains(joined.handle)) return error("bind_multicast", "it was not joined");
  auto& its = *static_cast<Joined*>(joined.handle);
  if (its.head->joined.load() < its.head->devices)
    return error("bind_multicast", "not all devices have joined: CUDA would block");
  void* const all = ::mmap(nullptr, its.head->bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (all == MAP_FAILED) return error("bind_multicast", "there are no addresses");
  its.all = static_cast<std::byte*>(all);
  joined.own = its.part(its.number);
  joined.all = its.all;
  std::memset(joined.own, 0xA5, its.head->bytes);
  its.head->bound.fetch_add(1);
  const std::lock_guard places(mutex);
  by_all[its.all] = its;
  return {};
}

Status HostRuntime::leave_multicast(Device device, const device::Multicast& joined) {
  const std::lock_guard lock(mutex_);
  ACCORD_RETURN_IF_ERROR(take_failure("leave_multicast"));
  ACCORD_RETURN_IF_ERROR(check("leave_multicast", device));
  if (multicasts_.erase(joined.handle) == 0) return error("leave_multicast", "it was not joined");
  const std::unique_ptr<Joined> its(static_cast<Joined*>(joined.handle));
  if (its->all != nullptr) {
    const std::lock_guard places(mutex);
    by_all.erase(its->all);
    ::munmap(its->all, its->head->bytes);
  }
  ::munmap(its->head, its->file_bytes());
  return {};
}

}  // namespace accord::testing
