#include "expert/device/call_memory.hpp"

#include "base/clock.hpp"
#include "base/wait.hpp"

namespace accord::expert {
namespace {

constexpr std::chrono::seconds kLastUseTimeout(5);

}  // namespace

bool LastUse::wait_for(device::Runtime& runtime, device::Event event) {
  const Deadline deadline = Deadline::in(kLastUseTimeout);
  Waiter waiter(WaitPolicy::kYield);
  while (!deadline.passed()) {
    const Result<bool> ended = runtime.has_happened(event);
    if (ended.ok() && *ended) return true;
    if (!ended.ok()) return false;
    (void)waiter.pause();
  }
  return false;
}

Result<CallMemory> CallMemory::allocate(device::Runtime& runtime, Device device, std::size_t bytes,
                                        std::string_view what) {
  ACCORD_ASSIGN_OR_RETURN(device::Memory memory, device::Memory::allocate(runtime, device, bytes, what));
  return CallMemory(runtime, std::move(memory));
}

// NOLINTNEXTLINE(bugprone-exception-escape): a lack of memory here ends the process
CallMemory::~CallMemory() {
  if (!wait()) memory_.leak();
}

Result<std::unique_ptr<HostNumbers>> HostNumbers::create(device::Runtime& runtime, Device device, std::size_t count) {
  std::unique_ptr<HostNumbers> created(new HostNumbers(runtime, device));
  ACCORD_ASSIGN_OR_RETURN(created->copied_, runtime.create_event(device));
  ACCORD_ASSIGN_OR_RETURN(void* const memory, runtime.allocate_host(device, count * sizeof(std::int64_t)));
  created->numbers_ = {static_cast<std::int64_t*>(memory), count};
  return created;
}

HostNumbers::~HostNumbers() {
  if (copied_.handle == nullptr || !LastUse::wait_for(runtime_, copied_)) return;
  if (!numbers_.empty()) (void)runtime_.release_host(device_, numbers_.data());
  (void)runtime_.destroy_event(copied_);
}

Status HostNumbers::copy(const std::int64_t* from, Stream stream) {
  ACCORD_RETURN_IF_ERROR(runtime_.copy(numbers_.data(), from, numbers_.size_bytes(), device_, stream));
  return runtime_.record(copied_, device_, stream);
}

}  // namespace accord::expert
