#include "expert/device/memory.hpp"

#include "base/clock.hpp"
#include "base/wait.hpp"

namespace accord::expert {
namespace {

constexpr std::chrono::seconds kLastUseTimeout(5);

}  // namespace

Result<DeviceMemory> DeviceMemory::allocate(device::Runtime& runtime, Device device, std::size_t bytes) {
  ACCORD_ASSIGN_OR_RETURN(void* const data, runtime.allocate(device, bytes));
  return DeviceMemory(runtime, device, static_cast<std::byte*>(data));
}

bool DeviceMemory::wait() const {
  if (last_use_ == nullptr) return true;
  const Deadline deadline = Deadline::in(kLastUseTimeout);
  Waiter waiter(WaitPolicy::kYield);
  while (!deadline.passed()) {
    const Result<bool> ended = runtime_.has_happened(*last_use_);
    if (ended.ok() && *ended) return true;
    if (!ended.ok()) return false;
    (void)waiter.pause();
  }
  return false;
}

// NOLINTNEXTLINE(bugprone-exception-escape): a lack of memory here ends the process
DeviceMemory::~DeviceMemory() {
  if (data_ != nullptr && wait()) (void)runtime_.release(device_, data_);
}

}  // namespace accord::expert
