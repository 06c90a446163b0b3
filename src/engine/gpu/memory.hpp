#pragma once
// Device memory that is released with its owner.

#include <cstddef>
#include <memory>
#include <string_view>

#include "device/runtime.hpp"

namespace accord::engine {

/// Movable. Whoever destroys or replaces it must first wait for the work that uses the memory.
class DeviceMemory {
 public:
  DeviceMemory() = default;
  /// Fails with kResourceExhausted, naming `what`, if the device refuses.
  static Result<DeviceMemory> allocate(device::Runtime& runtime, Device device, std::size_t bytes,
                                       std::string_view what);
  DeviceMemory(DeviceMemory&& other) noexcept { *this = std::move(other); }
  DeviceMemory& operator=(DeviceMemory&& other) noexcept;
  ~DeviceMemory() { release(); }

  std::byte* data() const { return data_; }
  std::size_t size() const { return bytes_; }

 private:
  void release();

  device::Runtime* runtime_ = nullptr;
  Device device_;
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace accord::engine
