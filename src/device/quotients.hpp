#pragma once
// Float division that rounds to integers, as PyTorch does it. For 16-bit operands each step is rounded to their
// dtype. For example, 2048 // 3 is 684 in bfloat16, because the neighbors of 682 there are 680 and 684. With `dtype`
// float32 nothing more is rounded.

#include <cmath>

#include "device/numbers.hpp"

namespace accord::device {

/// Rounds down. Uses fmod, which is exact, because a / b may round up to the next integer.
ACCORD_ON_DEVICE inline float floor_quotient(float a, float b, DType dtype) {
  if (b == 0.0F) return a / b;
  const float remainder = fmodf(a, b);
  float quotient = rounded_to(dtype, rounded_to(dtype, a - remainder) / b);
  if (remainder != 0.0F && (b < 0.0F) != (remainder < 0.0F)) quotient = rounded_to(dtype, quotient - 1.0F);
  if (quotient == 0.0F) return copysignf(0.0F, a / b);
  const float whole = floorf(quotient);
  return rounded_to(dtype, quotient - whole) > 0.5F ? whole + 1.0F : whole;
}

/// Rounds toward zero.
ACCORD_ON_DEVICE inline float trunc_quotient(float a, float b, DType dtype) { return truncf(rounded_to(dtype, a / b)); }

}  // namespace accord::device
