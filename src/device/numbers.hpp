#pragma once
// Elements of memory as numbers, on the host and on devices: floats of 8 and 16 bits are rounded to nearest even when they are written.

#include <cstdint>
#include <cstring>

#include "accord/buffer.hpp"
#include "device/kernel.hpp"

namespace accord::device {

ACCORD_ON_DEVICE inline std::uint32_t bits_of(float x) {
  std::uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}
ACCORD_ON_DEVICE inline float float_of(std::uint32_t bits) {
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

ACCORD_ON_DEVICE inline float from_bfloat16(std::uint16_t bits) { return float_of(std::uint32_t{bits} << 16); }
ACCORD_ON_DEVICE inline std::uint16_t to_bfloat16(float x) {
  const std::uint32_t bits = bits_of(x);
  if ((bits & 0x7fffffff) > 0x7f800000) return static_cast<std::uint16_t>(bits >> 16 | 0x40);  // NaN stays one
  return static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/// A float with `mantissa` bits of mantissa and an exponent of bias `bias` behind a sign; those of 8 bits lack infinity if `finite`.
template <int mantissa, int bias, bool finite>
ACCORD_ON_DEVICE inline float from_small(std::uint32_t bits, int width) {
  const std::uint32_t sign = bits >> (width - 1) << 31, rest = bits & ((1U << (width - 1)) - 1);
  const std::uint32_t top = (1U << (width - 1 - mantissa)) - 1, exponent = rest >> mantissa;
  const std::uint32_t fraction = rest & ((1U << mantissa) - 1);
  if (finite ? rest == (1U << (width - 1)) - 1 : exponent == top) {
    const bool infinite = !finite && fraction == 0;
    return float_of(sign | 0x7f800000 | (infinite ? 0 : 0x400000));
  }
  if (exponent == 0) {  // steps of the smallest one; the product is exact
    const float smallest = float_of(static_cast<std::uint32_t>(127 - bias + 1 - mantissa) << 23);
    return float_of(sign | bits_of(static_cast<float>(fraction) * smallest));
  }
  return float_of(sign | (exponent + 127 - bias) << 23 | fraction << (23 - mantissa));
}
template <int mantissa, int bias, bool finite>
ACCORD_ON_DEVICE inline std::uint32_t to_small(float x, int width) {
  const std::uint32_t all = bits_of(x), sign = all >> 31 << (width - 1), bits = all & 0x7fffffff;
  const std::uint32_t most = (1U << (width - 1)) - 1;  // all ones behind the sign
  const std::uint32_t infinity = most >> mantissa << mantissa;
  if (bits > 0x7f800000) return sign | (finite ? most : infinity | 1U << (mantissa - 1));
  const int exponent = static_cast<int>(bits >> 23) - 127 + bias;
  std::uint32_t rounded;
  if (exponent < 1) {
    const int shift = 23 - mantissa + 1 - exponent;
    if (shift > 24) return sign;
    const std::uint32_t fraction = (bits & 0x7fffff) | (bits >> 23 == 0 ? 0 : 0x800000);
    rounded = (fraction + (1U << (shift - 1)) - 1 + (fraction >> shift & 1)) >> shift;
  } else {
    constexpr int kShift = 23 - mantissa;
    if (exponent > 2 * bias + 2) return sign | (finite ? most : infinity);
    const std::uint32_t moved = (static_cast<std::uint32_t>(exponent) << 23) | (bits & 0x7fffff);
    rounded = (moved + (1U << (kShift - 1)) - 1 + (moved >> kShift & 1)) >> kShift;
  }
  if (finite) return sign | (rounded >= most ? most : rounded);
  return sign | (rounded >= infinity ? infinity : rounded);
}

ACCORD_ON_DEVICE inline float from_float16(std::uint16_t bits) {
#ifdef __CUDA_ARCH__
  float x;
  asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
  return x;
#else
  return from_small<10, 15, false>(bits, 16);
#endif
}
ACCORD_ON_DEVICE inline std::uint16_t to_float16(float x) {
#ifdef __CUDA_ARCH__
  std::uint16_t bits;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
  return bits;
#else
  return static_cast<std::uint16_t>(to_small<10, 15, false>(x, 16));
#endif
}
/// Without infinities: what is too large becomes NaN, as PyTorch's.
ACCORD_ON_DEVICE inline float from_float8_e4m3fn(std::uint8_t bits) { return from_small<3, 7, true>(bits, 8); }
ACCORD_ON_DEVICE inline std::uint8_t to_float8_e4m3fn(float x) {
  return static_cast<std::uint8_t>(to_small<3, 7, true>(x, 8));
}
ACCORD_ON_DEVICE inline float from_float8_e5m2(std::uint8_t bits) { return from_small<2, 15, false>(bits, 8); }
ACCORD_ON_DEVICE inline std::uint8_t to_float8_e5m2(float x) {
  return static_cast<std::uint8_t>(to_small<2, 15, false>(x, 8));
}

/// Element `index` of `dtype` as a float; whole numbers are rounded to the nearest one.
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
/// REQUIRES: a dtype of floats.
ACCORD_ON_DEVICE inline void store_float(void* data, DType dtype, std::int64_t index, float x) {
  switch (dtype) {
    case DType::kBFloat16: static_cast<std::uint16_t*>(data)[index] = to_bfloat16(x); break;
    case DType::kFloat16: static_cast<std::uint16_t*>(data)[index] = to_float16(x); break;
    case DType::kFloat8E4M3FN: static_cast<std::uint8_t*>(data)[index] = to_float8_e4m3fn(x); break;
    case DType::kFloat8E5M2: static_cast<std::uint8_t*>(data)[index] = to_float8_e5m2(x); break;
    default: static_cast<float*>(data)[index] = x;
  }
}
/// What is read of `x` once it has been written as `dtype`.
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
/// What does not fit wraps; of a bool, what is not 0 is 1.
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
