#pragma once
// Elements that a thread handles at a time.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "device/kernel.hpp"

namespace accord::exec {

ACCORD_ON_DEVICE inline bool is_aligned(const void* at, std::size_t bytes) {
  return reinterpret_cast<std::uintptr_t>(at) % bytes == 0;
}

/// Elements in consecutive places.
template <typename T, int kCount>
struct Several {
  T x[kCount];
};

/// The word in which a thread reads or writes all of them at once.
template <typename T, int kCount>
using WordOf = std::conditional_t<sizeof(Several<T, kCount>) == 8, std::uint64_t, device::Words>;

/// Loads `many` elements from `at`, at any alignment, as in a caller's buffer; the other elements keep their values.
/// Loops run over all, so that the results stay in registers.
template <typename T, int kCount>
ACCORD_ON_DEVICE void load_several(const std::byte* at, int many, Several<T, kCount>& to) {
  static_assert(sizeof(to) == sizeof(WordOf<T, kCount>));
  if (many == kCount && is_aligned(at, sizeof(to))) {
    const auto word = *reinterpret_cast<const WordOf<T, kCount>*>(at);
    std::memcpy(&to, &word, sizeof(to));
    return;
  }
  for (int i = 0; i < kCount; ++i)
    if (i < many) std::memcpy(&to.x[i], at + static_cast<std::size_t>(i) * sizeof(T), sizeof(T));
}

/// The inverse.
template <typename T, int kCount>
ACCORD_ON_DEVICE void store_several(const Several<T, kCount>& from, std::byte* at, int many) {
  if (many == kCount && is_aligned(at, sizeof(from))) {
    WordOf<T, kCount> word;
    std::memcpy(&word, &from, sizeof(word));
    *reinterpret_cast<WordOf<T, kCount>*>(at) = word;
    return;
  }
  for (int i = 0; i < kCount; ++i)
    if (i < many) std::memcpy(at + static_cast<std::size_t>(i) * sizeof(T), &from.x[i], sizeof(T));
}

}  // namespace accord::exec
