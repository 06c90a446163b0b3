#pragma once
// Device memory for kernels in flight.

#include <memory>
#include <string_view>
#include <utility>

#include "device/memory.hpp"
#include "device/runtime.hpp"

namespace accord::expert {

/// One allocation, released once the last call that uses it is complete. It is leaked if that call is still running
/// after a few seconds.
class CallMemory {
 public:
  /// `what`: names the memory in errors.
  static Result<CallMemory> allocate(device::Runtime& runtime, Device device, std::size_t bytes, std::string_view what);
  // NOLINTNEXTLINE(bugprone-exception-escape): a lack of memory there ends the process
  ~CallMemory();
  CallMemory(CallMemory&&) noexcept = default;
  CallMemory& operator=(CallMemory&&) = delete;

  std::byte* data() const { return memory_.data(); }
  /// Null for a call captured into a graph, which must not be launched after this object is destroyed.
  void set_last_use(std::shared_ptr<const device::Event> event) {
    if (event != nullptr) last_use_ = std::move(event);
  }
  /// Waits until the last call that uses the memory is complete, and returns true; returns false after a few seconds.
  bool wait() const;

 private:
  CallMemory(device::Runtime& runtime, device::Memory memory) : runtime_(runtime), memory_(std::move(memory)) {}
  device::Runtime& runtime_;
  device::Memory memory_;
  std::shared_ptr<const device::Event> last_use_;
};

}  // namespace accord::expert
