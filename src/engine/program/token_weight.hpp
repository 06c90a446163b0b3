#pragma once
// The weight of one token, bit-identical on every machine, on CPUs and GPUs: each operation rounds separately, as in
// IEEE 754.

#include <bit>
#include <cstdint>

#include "device/kernel.hpp"

namespace accord::engine {

/// The weight of the best token: weights are in units of 2^-30 of it.
inline constexpr std::uint32_t kWholeWeight = std::uint32_t{1} << 30;

// On GPUs, a product and a sum are contracted into one rounding unless these intrinsics are used. Files for the CPU
// that use these functions are compiled without contraction.
ACCORD_ON_DEVICE inline float rounded_sum(float a, float b) {
#ifdef __CUDA_ARCH__
  return __fadd_rn(a, b);
#else
  return a + b;
#endif
}
ACCORD_ON_DEVICE inline float rounded_product(float a, float b) {
#ifdef __CUDA_ARCH__
  return __fmul_rn(a, b);
#else
  return a * b;
#endif
}
ACCORD_ON_DEVICE inline float rounded_quotient(float a, float b) {
#ifdef __CUDA_ARCH__
  return __fdiv_rn(a, b);
#else
  return a / b;
#endif
}

/// exp(y) for y <= 0: 2^n times a polynomial approximation of 2^f, |f| <= 1/2. Relative error 2e-7; results below
/// 2^-120 become 2^-120.
ACCORD_ON_DEVICE inline float exp_of(float y) {
  const float scaled = rounded_product(y, 1.44269504F);
  const float t = scaled < -120.0F ? -120.0F : scaled;
  const auto n = static_cast<std::int32_t>(rounded_sum(t, -0.5F));
  const float f = rounded_sum(t, -static_cast<float>(n));
  float p = 1.52527338e-5F;
  p = rounded_sum(rounded_product(p, f), 1.54035304e-4F);
  p = rounded_sum(rounded_product(p, f), 1.33335581e-3F);
  p = rounded_sum(rounded_product(p, f), 9.61812911e-3F);
  p = rounded_sum(rounded_product(p, f), 5.55041087e-2F);
  p = rounded_sum(rounded_product(p, f), 2.40226507e-1F);
  p = rounded_sum(rounded_product(p, f), 6.93147181e-1F);
  p = rounded_sum(rounded_product(p, f), 1.0F);
  return std::bit_cast<float>(std::bit_cast<std::int32_t>(p) + n * (std::int32_t{1} << 23));
}

/// exp((value - best) / temperature) as a whole number. REQUIRES: `value` <= `best`.
ACCORD_ON_DEVICE inline std::uint32_t weight_of(float value, float best, float temperature) {
  constexpr float kHalf = 0.5F;  // rounds to nearest, since no weight is negative
  const float exact = rounded_product(exp_of(rounded_quotient(rounded_sum(value, -best), temperature)),
                                      static_cast<float>(kWholeWeight));
  return static_cast<std::uint32_t>(static_cast<std::int32_t>(rounded_sum(exact, kHalf)));
}

}  // namespace accord::engine
