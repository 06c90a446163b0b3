#pragma once
// The slow, plain way to compute the result of a collective: one element at a time.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "accord/buffer.hpp"

namespace accord::testing {

/// Sums values[first, last) by the canonical tree: split at the largest power of two below the count.
template <typename T>
T tree_sum(const std::vector<T>& values, std::size_t first, std::size_t last) {
  if (last - first == 1) return values[first];
  std::size_t half = 1;
  while (half * 2 < last - first) half *= 2;
  return static_cast<T>(tree_sum(values, first, first + half) + tree_sum(values, first + half, last));
}

template <typename T>
T combine(ReduceOp op, const std::vector<T>& values) {
  switch (op) {
    case ReduceOp::kMin: return *std::min_element(values.begin(), values.end());
    case ReduceOp::kMax: return *std::max_element(values.begin(), values.end());
    default: break;
  }
  return tree_sum(values, 0, values.size());
}

/// IEEE half and bfloat16 by definition: the nearest representable value, ties to the one with an even last bit.
inline std::uint16_t to_bfloat16(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, 4);
  const std::uint32_t low = bits & 0xffff, high = bits >> 16;
  return static_cast<std::uint16_t>(high + (low > 0x8000 || (low == 0x8000 && (high & 1))));
}
inline float from_bfloat16(std::uint16_t half) {
  const std::uint32_t bits = static_cast<std::uint32_t>(half) << 16;
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

/// Value of rank `rank` at position i: a multiple of 2^-16, different for every rank and position. Sums over any
/// ranks are inexact in float, but only in the last bits.
inline float sample(int rank, std::size_t i) {
  const auto mixed = static_cast<std::uint32_t>((i + 1) * 2654435761u + static_cast<std::uint32_t>(rank + 1) * 40503u);
  return static_cast<float>(static_cast<std::int32_t>(mixed)) / 65536.0f;
}

}  // namespace accord::testing
