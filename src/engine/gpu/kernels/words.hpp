#pragma once
// Access to elements of 1, 2 or 4 bytes by 16 bytes at a time, which a thread reads with one instruction; and other
// helpers for kernels that are limited only by memory.

#include "device/numbers.hpp"

#ifdef __CUDACC__
/// Unrolls the loop that follows. The number of its iterations must be known.
#define ACCORD_UNROLLED _Pragma("unroll")
/// Unrolls the loop that follows by `turns` iterations.
#define ACCORD_UNROLLED_BY(turns) _Pragma(ACCORD_TEXT_OF(unroll turns))
#define ACCORD_TEXT_OF(words) #words
#else
#define ACCORD_UNROLLED
#define ACCORD_UNROLLED_BY(turns)
#endif

namespace accord::engine {

/// a * b + c. Rounded once on GPUs, so it is only for sums whose last bits are not specified.
ACCORD_ON_DEVICE inline float multiply_add(float a, float b, float c) {
#ifdef __CUDA_ARCH__
  return __fmaf_rn(a, b, c);
#else
  return a * b + c;
#endif
}

using device::Words;

/// The number of elements in one of Words: of float32, bfloat16, float16 or float8_e4m3fn.
template <DType kDType>
inline constexpr int kElementsOfWords = kDType == DType::kFloat32        ? 4
                                        : kDType == DType::kFloat8E4M3FN ? 16
                                                                         : 8;

/// Converts two neighbours of float8_e4m3fn, the first in the low byte, to two of float16, which holds all float8
/// values.
ACCORD_ON_DEVICE inline std::uint32_t halves_of_float8(std::uint32_t pair) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  std::uint32_t halves;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(static_cast<std::uint16_t>(pair)));
  return halves;
#else
  const auto half = [](std::uint32_t bits) {
    return std::uint32_t{device::to_float16(device::from_float8_e4m3fn(static_cast<std::uint8_t>(bits)))};
  };
  return half(pair & 0xFF) | half(pair >> 8 & 0xFF) << 16;
#endif
}

/// Rounds two numbers to float8_e4m3fn, to nearest even and at most 448. The first is in the low byte.
ACCORD_ON_DEVICE inline std::uint32_t float8_pair(float first, float second) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  std::uint16_t pair;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(second), "f"(first));
  return pair;
#else
  return device::to_float8_e4m3fn(first) | static_cast<std::uint32_t>(device::to_float8_e4m3fn(second)) << 8;
#endif
}

/// Returns element `i`, of float32, bfloat16 or float16.
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

/// Rounds two numbers to bfloat16 or float16. The first is in the lower half. The bits of a NaN are unspecified.
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

/// Converts all elements of `words` to float32.
template <DType kDType>
ACCORD_ON_DEVICE inline void elements_of(const Words& words, float (&elements)[kElementsOfWords<kDType>]) {
  constexpr int kCount = kElementsOfWords<kDType>;
  if constexpr (kDType == DType::kFloat8E4M3FN) {
    ACCORD_UNROLLED
    for (int pair = 0; pair < kCount / 2; ++pair) {  // one instruction converts both
      const std::uint32_t halves = halves_of_float8(words.of[pair / 2] >> (pair % 2 * 16) & 0xFFFFU);
      elements[2 * pair] = device::from_float16(static_cast<std::uint16_t>(halves));
      elements[2 * pair + 1] = device::from_float16(static_cast<std::uint16_t>(halves >> 16));
    }
  } else {
    ACCORD_UNROLLED
    for (int i = 0; i < kCount; ++i) elements[i] = element_of<kDType>(words, i);
  }
}

/// Converts two neighbours of float8_e4m3fn to two of bfloat16 or float16, which hold all float8 values.
template <DType kDType>
ACCORD_ON_DEVICE inline std::uint32_t widened_pair(std::uint32_t pair) {
  const std::uint32_t halves = halves_of_float8(pair);
  if constexpr (kDType == DType::kFloat16) {
    return halves;
  } else {
    return word_of_pair<kDType>(device::from_float16(static_cast<std::uint16_t>(halves)),
                                device::from_float16(static_cast<std::uint16_t>(halves >> 16)));
  }
}

/// Converts 16 elements of float8_e4m3fn to pairs of kDType, one pair in each word of `wide`.
template <DType kDType>
ACCORD_ON_DEVICE inline void widen(const Words& words, std::uint32_t (&wide)[8]) {
  ACCORD_UNROLLED
  for (int i = 0; i < 8; ++i) wide[i] = widened_pair<kDType>(words.of[i / 2] >> (i % 2 * 16) & 0xFFFFU);
}

/// Same for elements that have a scale: each is the product, rounded to kDType.
template <DType kDType>
ACCORD_ON_DEVICE inline std::uint32_t widened_pair(std::uint32_t pair, float scale) {
  const std::uint32_t halves = halves_of_float8(pair);
  return word_of_pair<kDType>(device::from_float16(static_cast<std::uint16_t>(halves)) * scale,
                              device::from_float16(static_cast<std::uint16_t>(halves >> 16)) * scale);
}
template <DType kDType>
ACCORD_ON_DEVICE inline void widen_scaled(const Words& words, float scale, std::uint32_t (&wide)[8]) {
  ACCORD_UNROLLED
  for (int i = 0; i < 8; ++i) wide[i] = widened_pair<kDType>(words.of[i / 2] >> (i % 2 * 16) & 0xFFFFU, scale);
}

/// Converts as many elements of float8_e4m3fn as fill one of Words in kDType. The first ones are in the first word.
template <DType kDType>
ACCORD_ON_DEVICE inline Words widened(const std::uint32_t (&elements)[2]) {
  Words words{};
  if constexpr (kDType == DType::kFloat32) {
    ACCORD_UNROLLED
    for (int pair = 0; pair < 2; ++pair) {
      const std::uint32_t halves = halves_of_float8(elements[0] >> (pair * 16) & 0xFFFFU);
      words.of[2 * pair] = device::bits_of(device::from_float16(static_cast<std::uint16_t>(halves)));
      words.of[2 * pair + 1] = device::bits_of(device::from_float16(static_cast<std::uint16_t>(halves >> 16)));
    }
  } else {
    ACCORD_UNROLLED
    for (int i = 0; i < 4; ++i) words.of[i] = widened_pair<kDType>(elements[i / 2] >> (i % 2 * 16) & 0xFFFFU);
  }
  return words;
}
/// Same for elements that have a scale: each is the product, rounded to kDType.
template <DType kDType>
ACCORD_ON_DEVICE inline Words widened_scaled(const std::uint32_t (&elements)[2], float scale) {
  Words words{};
  if constexpr (kDType == DType::kFloat32) {
    words = widened<kDType>(elements);
    ACCORD_UNROLLED
    for (int i = 0; i < 4; ++i) words.of[i] = device::bits_of(device::float_of(words.of[i]) * scale);
  } else {
    ACCORD_UNROLLED
    for (int i = 0; i < 4; ++i) words.of[i] = widened_pair<kDType>(elements[i / 2] >> (i % 2 * 16) & 0xFFFFU, scale);
  }
  return words;
}

/// Returns word `index` of `count`, or zeros past the last.
ACCORD_ON_DEVICE inline Words words_at(const Words* words, std::int64_t index, std::int64_t count) {
  return index < count ? words[index] : Words{};
}

}  // namespace accord::engine
