#pragma once
// Elements that a thread handles at a time.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "device/kernel.hpp"

/// Before a loop that is rarely run: keeps its code small on GPUs.
#ifdef __CUDACC__
#define ACCORD_ROLLED _Pragma("unroll 1")
#else
#define ACCORD_ROLLED
#endif

namespace accord::exec {

ACCORD_ON_DEVICE inline bool is_aligned(const void* at, std::size_t bytes) {
  return reinterpret_cast<std::uintptr_t>(at) % bytes == 0;
}

/// Loads a word of up to 8 bytes, at any alignment; the bytes behind are zeros.
ACCORD_ON_DEVICE inline std::uint64_t load_word(const std::byte* at, std::size_t bytes) {
  if (bytes == 8 && is_aligned(at, 8)) return *reinterpret_cast<const std::uint64_t*>(at);
  std::uint64_t word = 0;
  ACCORD_ROLLED
  for (std::size_t b = 0; b < bytes; ++b) word |= std::uint64_t{static_cast<std::uint8_t>(at[b])} << (8 * b);
  return word;
}
/// The inverse.
ACCORD_ON_DEVICE inline void store_word(std::uint64_t word, std::byte* at, std::size_t bytes) {
  if (bytes == 8 && is_aligned(at, 8)) {
    *reinterpret_cast<std::uint64_t*>(at) = word;
    return;
  }
  ACCORD_ROLLED
  for (std::size_t b = 0; b < bytes; ++b) at[b] = static_cast<std::byte>(word >> (8 * b));
}

/// Elements in consecutive places.
template <typename T, int kCount>
struct Several {
  T x[kCount];
};

}  // namespace accord::exec
