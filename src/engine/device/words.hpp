#pragma once
// Elements of 2 or 4 bytes by 16 bytes at a time, which a thread reads with one instruction; and what else the kernels need that wait for
// memory alone.

#include "device/numbers.hpp"

#ifdef __CUDACC__
/// Before a loop of a known number of turns.
#define ACCORD_UNROLLED _Pragma("unroll")
/// As many turns of a loop at once.
#define ACCORD_UNROLLED_BY(turns) _Pragma(ACCORD_TEXT_OF(unroll turns))
#define ACCORD_TEXT_OF(words) #words
#else
#define ACCORD_UNROLLED
#define ACCORD_UNROLLED_BY(turns)
#endif

namespace accord::engine {

/// a b + c; rounded once on GPUs, in sums whose last bits are nobody's.
ACCORD_ON_DEVICE inline float multiply_add(float a, float b, float c) {
#ifdef __CUDA_ARCH__
  return __fmaf_rn(a, b, c);
#else
  return a * b + c;
#endif
}

using device::Words;

/// Elements in one of Words: of float32, bfloat16 or float16.
template <DType kDType>
inline constexpr int kElementsOfWords = kDType == DType::kFloat32 ? 4 : 8;

template <DType kDType>
ACCORD_ON_DEVICE inline float element_of(const Words& words, int i) {
  if constexpr (kDType == DType::kFloat32) {
    return device::float_of(words.of[i]);
  } else if constexpr (kDType == DType::kBFloat16) {
    const std::uint32_t both = words.of[i / 2];
    return device::float_of(i % 2 == 0 ? both << 16 : both & 0xFFFF0000U);
  } else {
    return device::from_float16(static_cast<std::uint16_t>(words.of[i / 2] >> (i % 2 * 16)));
  }
}

/// Two elements of bfloat16 or float16 as one word, the first in its lower half. A NaN is any.
template <DType kDType>
ACCORD_ON_DEVICE inline std::uint32_t word_of_pair(float first, float second) {
  static_assert(kDType == DType::kBFloat16 || kDType == DType::kFloat16);
#ifdef __CUDA_ARCH__
  std::uint32_t word;
  if constexpr (kDType == DType::kBFloat16) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(second), "f"(first));
  } else {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(second), "f"(first));
  }
  return word;
#else
  if constexpr (kDType == DType::kBFloat16) {
    return device::to_bfloat16(first) | static_cast<std::uint32_t>(device::to_bfloat16(second)) << 16;
  } else {
    return device::to_float16(first) | static_cast<std::uint32_t>(device::to_float16(second)) << 16;
  }
#endif
}

/// Number `index` of `count`, zeros behind the last.
ACCORD_ON_DEVICE inline Words words_at(const Words* words, std::int64_t index, std::int64_t count) {
  return index < count ? words[index] : Words{};
}

}  // namespace accord::engine
