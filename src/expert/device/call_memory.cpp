#include "expert/device/call_memory.hpp"

#include "base/clock.hpp"
#include "base/wait.hpp"

namespace accord::expert {
namespace {

constexpr std::chrono::seconds kLastUseTimeout(5);

}  // namespace

Result<CallMemory> CallMemory::allocate(device::Runtime& runtime, Device device, std::size_t bytes,
                                        std::string_view what) {
  ACCORD_ASSIGN_OR_RETURN(device::Memory memory, device::Memory::allocate(runtime, device, bytes, what));
  return CallMemory(runtime, std::move(memory));
}

bool CallMemory::wait() const {
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
CallMemory::~CallMemory() {
  if (!wait()) memory_.leak();
}

}  // namespace accord::expert
