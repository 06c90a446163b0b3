#pragma once
// Memory for kernels in flight.

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <utility>

#include "device/memory.hpp"
#include "device/runtime.hpp"

namespace accord::expert {

/// The end of the last call that uses something.
class LastUse {
 public:
  explicit LastUse(device::Runtime& runtime) : runtime_(&runtime) {}
  /// Null for a call captured into a graph, which must not be launched after the memory's owner is destroyed.
  void set(std::shared_ptr<const device::Event> event) {
    if (event != nullptr) event_ = std::move(event);
  }
  /// Waits until the call is complete, and returns true; returns false after a few seconds.
  bool wait() const { return event_ == nullptr || wait_for(*runtime_, *event_); }
  /// The same for any event.
  static bool wait_for(device::Runtime& runtime, device::Event event);

 private:
  device::Runtime* runtime_;
  std::shared_ptr<const device::Event> event_;
};

/// One allocation on a device, released once the last call that uses it is complete. It is leaked if that call is
/// still running after a few seconds.
class CallMemory {
 public:
  /// `what`: names the memory in errors.
  static Result<CallMemory> allocate(device::Runtime& runtime, Device device, std::size_t bytes, std::string_view what);
  // NOLINTNEXTLINE(bugprone-exception-escape): a lack of memory there ends the process
  ~CallMemory();
  CallMemory(CallMemory&&) noexcept = default;
  CallMemory& operator=(CallMemory&&) = delete;

  std::byte* data() const { return memory_.data(); }
  std::size_t size() const { return memory_.size(); }
  void set_last_use(std::shared_ptr<const device::Event> event) { last_use_.set(std::move(event)); }
  /// As LastUse::wait().
  bool wait() const { return last_use_.wait(); }

 private:
  CallMemory(device::Runtime& runtime, device::Memory memory) : memory_(std::move(memory)), last_use_(runtime) {}
  device::Memory memory_;
  LastUse last_use_;
};

/// Numbers of a device, and their copy in pinned host memory.
class HostNumbers {
 public:
  static Result<std::unique_ptr<HostNumbers>> create(device::Runtime& runtime, Device device, std::size_t count);
  /// Waits for the last copy, for a few seconds.
  ~HostNumbers();
  HostNumbers(const HostNumbers&) = delete;
  HostNumbers& operator=(const HostNumbers&) = delete;

  /// Copies the numbers in `stream`.
  Status copy(const std::int64_t* from, Stream stream);
  /// Whether the last copy is complete.
  Result<bool> have_come() const { return runtime_.has_happened(copied_); }
  std::span<const std::int64_t> numbers() const { return numbers_; }

 private:
  HostNumbers(device::Runtime& runtime, Device device) : runtime_(runtime), device_(device) {}
  device::Runtime& runtime_;
  const Device device_;
  device::Event copied_ = {};
  std::span<std::int64_t> numbers_;
};

}  // namespace accord::expert
