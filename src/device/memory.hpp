#pragma once
// Memory of devices, and host memory for copies to and from them, that is released with its owner.

#include <cstddef>
#include <string_view>
#include <utility>

#include "device/runtime.hpp"

namespace accord::device {

/// Movable. Whoever destroys or replaces it must first wait for the work that uses the memory.
class Memory {
 public:
  Memory() = default;
  /// Fails with kResourceExhausted, naming `what`, if the device refuses.
  static Result<Memory> allocate(Runtime& runtime, Device device, std::size_t bytes, std::string_view what);
  /// The same for pinned memory of the host (Runtime::allocate_host).
  static Result<Memory> allocate_host(Runtime& runtime, Device device, std::size_t bytes, std::string_view what);
  Memory(Memory&& other) noexcept { *this = std::move(other); }
  Memory& operator=(Memory&& other) noexcept;
  ~Memory() { release(); }

  std::byte* data() const { return data_; }
  std::size_t size() const { return bytes_; }
  /// Leaves the memory allocated for good, because work that uses it may never end.
  void leak();

 private:
  using Allocate = Result<void*> (Runtime::*)(Device device, std::size_t bytes);
  using Release = Status (Runtime::*)(Device device, void* memory);
  static Result<Memory> allocate(Runtime& runtime, Device device, std::size_t bytes, std::string_view what,
                                 Allocate allocate);
  void release();

  Runtime* runtime_ = nullptr;
  Device device_;
  Release release_ = &Runtime::release;
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace accord::device
