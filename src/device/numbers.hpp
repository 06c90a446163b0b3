#pragma once
// Conversions of 8-bit and 16-bit floats to and from float32, one number at a time. They are bit-identical to the
// host's vector kernels (kernels/half_simd.hpp, kernels/minifloat_simd.hpp): they round to nearest even, and every
// NaN becomes the same NaN.

#include <bit>
#include <cstdint>

#include "accord/buffer.hpp"
#include "device/kernel.hpp"

namespace accord::device {

/// A format: a sign, an exponent with bias `kBias`, and `kMantissa` bits of mantissa.
struct Half {
  static constexpr int kBits = 16, kMantissa = 10, kBias = 15;
  static constexpr std::uint32_t kLargest = 0x7BFF;        // finite
  static constexpr std::uint32_t kBeyondLargest = 0x7C00;  // larger values become this: infinity
  static constexpr std::uint32_t kNaN = 0x7E00;
};
struct E5M2 {
  static constexpr int kBits = 8, kMantissa = 2, kBias = 15;
  static constexpr std::uint32_t kLargest = 0x7B;
  static constexpr std::uint32_t kBeyondLargest = 0x7C;
  static constexpr std::uint32_t kNaN = 0x7F;
};
/// Has no infinities: values beyond the largest number become that number.
struct E4M3FN {
  static constexpr int kBits = 8, kMantissa = 3, kBias = 7;
  static constexpr std::uint32_t kLargest = 0x7E;
  static constexpr std::uint32_t kBeyondLargest = 0x7E;
  static constexpr std::uint32_t kNaN = 0x7F;
};

ACCORD_ON_DEVICE inline float float_of(std::uint32_t bits) { return std::bit_cast<float>(bits); }
ACCORD_ON_DEVICE inline std::uint32_t bits_of(float x) { return std::bit_cast<std::uint32_t>(x); }

/// Replaces every NaN by the positive quiet NaN.
ACCORD_ON_DEVICE inline float canonical(float x) { return x != x ? float_of(0x7FC00000U) : x; }
ACCORD_ON_DEVICE inline double canonical(double x) {
  return x != x ? std::bit_cast<double>(std::uint64_t{0x7FF8000000000000U}) : x;
}

template <typename Format>
ACCORD_ON_DEVICE inline float from_minifloat(std::uint32_t bits) {
  constexpr int kShift = 23 - Format::kMantissa;
  constexpr std::uint32_t kSign = 1U << (Format::kBits - 1);
  constexpr float kSmallest = 1.0F / static_cast<float>(1ULL << (Format::kBias - 1 + Format::kMantissa));
  const std::uint32_t sign = (bits & kSign) << (32 - Format::kBits), magnitude = bits & (kSign - 1);
  if (magnitude > Format::kLargest) {
    if (Format::kBeyondLargest == Format::kLargest) return float_of(sign | 0x7FC00000U);
    return float_of(sign | ((magnitude << kShift) + (static_cast<std::uint32_t>(254 - 2 * Format::kBias) << 23)));
  }
  if (magnitude < (1U << Format::kMantissa))  // a denormal is an integer multiple of the smallest one
    return float_of(sign | bits_of(static_cast<float>(magnitude) * kSmallest));
  return float_of(sign | ((magnitude << kShift) + (static_cast<std::uint32_t>(127 - Format::kBias) << 23)));
}

template <typename Format>
ACCORD_ON_DEVICE inline std::uint32_t to_minifloat(float x) {
  constexpr int kShift = 23 - Format::kMantissa;
  // A float whose last bit has the value of the format's smallest denormal: the adder rounds to multiples of it.
  constexpr int kExponent = 24 - Format::kBias - Format::kMantissa;
  constexpr float kRounder = kExponent < 0 ? 1.0F / static_cast<float>(1 << (kExponent < 0 ? -kExponent : 0))
                                           : static_cast<float>(1 << (kExponent < 0 ? 0 : kExponent));
  const std::uint32_t bits = bits_of(x), magnitude = bits & 0x7FFFFFFFU;
  const std::uint32_t sign = (bits & 0x80000000U) >> (32 - Format::kBits);
  if (magnitude > 0x7F800000U) return Format::kNaN;
  std::uint32_t rounded;
  if (magnitude < (static_cast<std::uint32_t>(128 - Format::kBias) << 23)) {
    rounded = bits_of(float_of(magnitude) + kRounder) - bits_of(kRounder);
  } else {
    const std::uint32_t odd = (magnitude >> kShift) & 1U;
    rounded =
        (magnitude + ((1U << (kShift - 1)) - 1) - (static_cast<std::uint32_t>(127 - Format::kBias) << 23) + odd) >>
        kShift;
  }
  return sign | (rounded > Format::kLargest ? Format::kBeyondLargest : rounded);
}

ACCORD_ON_DEVICE inline float from_float16(std::uint16_t bits) {
#ifdef __CUDA_ARCH__
  float x;
  asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
  return x;
#else
  return from_minifloat<Half>(bits);
#endif
}

ACCORD_ON_DEVICE inline std::uint16_t to_float16(float x) {
#ifdef __CUDA_ARCH__
  if (x != x) return static_cast<std::uint16_t>(Half::kNaN);
  std::uint16_t bits;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
  return bits;
#else
  return static_cast<std::uint16_t>(to_minifloat<Half>(x));
#endif
}

ACCORD_ON_DEVICE inline float from_bfloat16(std::uint16_t bits) { return float_of(std::uint32_t{bits} << 16); }

ACCORD_ON_DEVICE inline std::uint16_t to_bfloat16(float x) {
  const std::uint32_t bits = bits_of(canonical(x));
  return static_cast<std::uint16_t>((bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16);
}

ACCORD_ON_DEVICE inline float from_float8_e4m3fn(std::uint8_t bits) { return from_minifloat<E4M3FN>(bits); }
ACCORD_ON_DEVICE inline std::uint8_t to_float8_e4m3fn(float x) {
  return static_cast<std::uint8_t>(to_minifloat<E4M3FN>(x));
}
ACCORD_ON_DEVICE inline float from_float8_e5m2(std::uint8_t bits) { return from_minifloat<E5M2>(bits); }
ACCORD_ON_DEVICE inline std::uint8_t to_float8_e5m2(float x) {
  return static_cast<std::uint8_t>(to_minifloat<E5M2>(x));
}

/// Returns element `index` of `dtype` as a float. Integers are rounded to the nearest float.
ACCORD_ON_DEVICE inline float load_float(const void* data, DType dtype, std::int64_t index) {
  switch (dtype) {
    case DType::kFloat32: return static_cast<const float*>(data)[index];
    case DType::kBFloat16: return from_bfloat16(static_cast<const std::uint16_t*>(data)[index]);
    case DType::kFloat16: return from_float16(static_cast<const std::uint16_t*>(data)[index]);
    case DType::kFloat8E4M3FN: return from_float8_e4m3fn(static_cast<const std::uint8_t*>(data)[index]);
    case DType::kFloat8E5M2: return from_float8_e5m2(static_cast<const std::uint8_t*>(data)[index]);
    case DType::kInt64: return static_cast<float>(static_cast<const std::int64_t*>(data)[index]);
    case DType::kInt32: return static_cast<float>(static_cast<const std::int32_t*>(data)[index]);
    default: return static_cast<float>(static_cast<const std::uint8_t*>(data)[index]);  // uint8 and bool
  }
}
/// REQUIRES: a float dtype.
ACCORD_ON_DEVICE inline void store_float(void* data, DType dtype, std::int64_t index, float x) {
  switch (dtype) {
    case DType::kBFloat16: static_cast<std::uint16_t*>(data)[index] = to_bfloat16(x); break;
    case DType::kFloat16: static_cast<std::uint16_t*>(data)[index] = to_float16(x); break;
    case DType::kFloat8E4M3FN: static_cast<std::uint8_t*>(data)[index] = to_float8_e4m3fn(x); break;
    case DType::kFloat8E5M2: static_cast<std::uint8_t*>(data)[index] = to_float8_e5m2(x); break;
    default: static_cast<float*>(data)[index] = x;
  }
}
/// Returns the value that is read back after `x` has been written as `dtype`.
ACCORD_ON_DEVICE inline float rounded_to(DType dtype, float x) {
  switch (dtype) {
    case DType::kBFloat16: return from_bfloat16(to_bfloat16(x));
    case DType::kFloat16: return from_float16(to_float16(x));
    default: return x;
  }
}

/// REQUIRES: int64, int32, int16, uint8 or bool.
ACCORD_ON_DEVICE inline std::int64_t load_integer(const void* data, DType dtype, std::int64_t index) {
  switch (dtype) {
    case DType::kInt64: return static_cast<const std::int64_t*>(data)[index];
    case DType::kInt32: return static_cast<const std::int32_t*>(data)[index];
    case DType::kInt16: return static_cast<const std::int16_t*>(data)[index];
    default: return static_cast<const std::uint8_t*>(data)[index];
  }
}
/// Values out of range wrap; for bool, any nonzero value becomes 1.
ACCORD_ON_DEVICE inline void store_integer(void* data, DType dtype, std::int64_t index, std::int64_t x) {
  switch (dtype) {
    case DType::kInt64: static_cast<std::int64_t*>(data)[index] = x; break;
    case DType::kInt32: static_cast<std::int32_t*>(data)[index] = static_cast<std::int32_t>(x); break;
    case DType::kInt16: static_cast<std::int16_t*>(data)[index] = static_cast<std::int16_t>(x); break;
    case DType::kBool: static_cast<std::uint8_t*>(data)[index] = x != 0; break;
    default: static_cast<std::uint8_t*>(data)[index] = static_cast<std::uint8_t>(x);
  }
}

}  // namespace accord::device
