#pragma once
// Device memory for kernels in flight.

#include <cstddef>
#include <memory>
#include <utility>

#include "base/rounding.hpp"
#include "device/runtime.hpp"

namespace accord::expert {

/// One allocation, released once the last call that uses it is complete. It is leaked if that call is still running
/// after a few seconds.
class DeviceMemory {
 public:
  static Result<DeviceMemory> allocate(device::Runtime& runtime, Device device, std::size_t bytes);
  // NOLINTNEXTLINE(bugprone-exception-escape): a lack of memory there ends the process
  ~DeviceMemory();
  DeviceMemory(DeviceMemory&& other) noexcept
      : runtime_(other.runtime_),
        device_(other.device_),
        data_(std::exchange(other.data_, nullptr)),
        last_use_(std::move(other.last_use_)) {}
  DeviceMemory& operator=(DeviceMemory&&) = delete;

  std::byte* data() const { return data_; }
  /// Null for a call captured into a graph, which must not be launched after this object is destroyed.
  void set_last_use(std::shared_ptr<const device::Event> event) {
    if (event != nullptr) last_use_ = std::move(event);
  }
  /// Waits until the last call that uses the memory is complete, and returns true; returns false after a few seconds.
  bool wait() const;

 private:
  DeviceMemory(device::Runtime& runtime, Device device, std::byte* data)
      : runtime_(runtime), device_(device), data_(data) {}
  device::Runtime& runtime_;
  const Device device_;
  std::byte* data_;
  std::shared_ptr<const device::Event> last_use_;
};

/// Divides memory into arrays. Without memory it only adds up the bytes they need.
class Divider {
 public:
  explicit Divider(std::byte* memory) : memory_(memory) {}
  template <typename T>
  void allocate(T*& array, std::size_t count) {
    array = memory_ == nullptr ? nullptr : reinterpret_cast<T*>(memory_ + used_);
    used_ += round_up(count * sizeof(T), std::size_t{256});
  }
  std::size_t used() const { return used_; }

 private:
  std::byte* const memory_;
  std::size_t used_ = 0;
};

}  // namespace accord::expert
