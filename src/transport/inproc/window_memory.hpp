#pragma once
// Private zeroed memory of this process, in whole pages.

#include <cstddef>
#include <span>

#include "accord/status.hpp"

namespace accord::transport {

/// Owns an anonymous mapping. Pages are zero and use memory only once touched.
class WindowMemory {
 public:
  /// Fails with kResourceExhausted if the address space has no room.
  static Result<WindowMemory> create(std::size_t bytes);

  WindowMemory(WindowMemory&& other) noexcept;
  WindowMemory& operator=(WindowMemory&&) = delete;
  ~WindowMemory();

  std::span<std::byte> bytes() const { return bytes_; }

 private:
  explicit WindowMemory(std::span<std::byte> bytes) : bytes_(bytes) {}
  std::span<std::byte> bytes_;
};

}  // namespace accord::transport
