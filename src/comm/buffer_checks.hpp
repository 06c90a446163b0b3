#pragma once
// Checks buffers.

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "accord/buffer.hpp"
#include "accord/status.hpp"

namespace accord::comm {

/// Checks that a buffer is memory of this machine: its pointer, count, dtype and device. `name` is its name in
/// errors.
Status check_memory(std::string_view name, const ConstBuffer& buffer);

/// The same except for the location: checks the pointer, count, dtype and kind of device.
Status check_elements(std::string_view name, const ConstBuffer& buffer);

/// Returns whether `a_bytes` at `a` and `b_bytes` at `b` have no bytes in common.
inline bool are_disjoint(const void* a, std::size_t a_bytes, const void* b, std::size_t b_bytes) {
  const auto first = reinterpret_cast<std::uintptr_t>(a), second = reinterpret_cast<std::uintptr_t>(b);
  return first >= second + b_bytes || second >= first + a_bytes;
}

}  // namespace accord::comm
