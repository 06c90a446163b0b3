#pragma once
// Division of floats that rounds to whole numbers, as PyTorch does it. Beside operands of 16 bits each step is
// rounded to their dtype: so 2048 // 3 is 684 in bfloat16, whose neighbours of 682 are 680 and 684. With `dtype`
// float32 nothing more is rounded.

#include <cmath>

#include "device/numbers.hpp"

namespace accord::device {

/// Down, by fmod, which is exact: a / b may round up to the next whole number.
ACCORD_ON_DEVICE inline float floor_quotient(float a, float b, DType dtype) {
  if (b == 0.0F) return a / b;
  const float rest = fmodf(a, b);
  float quotient = rounded_to(dtype, rounded_to(dtype, a - rest) / b);
  if (rest != 0.0F && (b < 0.0F) != (rest < 0.0F)) quotient = rounded_to(dtype, quotient - 1.0F);
  if (quotient == 0.0F) return copysignf(0.0F, a / b);
  const float whole = floorf(quotient);
  return rounded_to(dtype, quotient - whole) > 0.5F ? whole + 1.0F : whole;
}

/// Toward zero.
ACCORD_ON_DEVICE inline float trunc_quotient(float a, float b, DType dtype) { return truncf(rounded_to(dtype, a / b)); }

}  // namespace accord::device
