// Converts 8-bit and 16-bit floats to and from fp32 by integer arithmetic, vector by vector, bit-identical on every
// instruction set. A format has a sign, an exponent with bias `kBias`, and `kMantissa` bits of mantissa. Here its
// bits are in the low end of 32-bit lanes.
// Included once per Highway target; the guard below follows Highway's rule for such files.

#if defined(ACCORD_KERNELS_MINIFLOAT_SIMD_HPP_) == defined(HWY_TARGET_TOGGLE)
#ifdef ACCORD_KERNELS_MINIFLOAT_SIMD_HPP_
#undef ACCORD_KERNELS_MINIFLOAT_SIMD_HPP_
#else
#define ACCORD_KERNELS_MINIFLOAT_SIMD_HPP_
#endif

#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace accord::kernels::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

/// IEEE half.
struct Half {
  static constexpr int kBits = 16, kMantissa = 10, kBias = 15;
  static constexpr int kLargest = 0x7BFF;        // finite
  static constexpr int kBeyondLargest = 0x7C00;  // larger values become this: infinity
  static constexpr int kNaN = 0x7E00;
};

/// OCP E5M2, which follows IEEE rules. The NaN is the one that PyTorch's conversion produces.
struct E5M2 {
  static constexpr int kBits = 8, kMantissa = 2, kBias = 15;
  static constexpr int kLargest = 0x7B;
  static constexpr int kBeyondLargest = 0x7C;
  static constexpr int kNaN = 0x7F;
};

/// OCP E4M3 with finite values and a single NaN. Values beyond 448, including infinity, saturate, as in PyTorch's
/// conversion.
struct E4M3FN {
  static constexpr int kBits = 8, kMantissa = 3, kBias = 7;
  static constexpr int kLargest = 0x7E;
  static constexpr int kBeyondLargest = 0x7E;
  static constexpr int kNaN = 0x7F;
};

template <class Format, class DF>
ACCORD_INLINE_CONVERSION hn::Vec<DF> MinifloatToFloat(DF d, hn::Vec<hn::RebindToUnsigned<DF>> bits) {
  constexpr int kShift = 23 - Format::kMantissa;
  constexpr std::uint32_t kSign = 1U << (Format::kBits - 1);
  constexpr std::uint32_t kRebias = static_cast<std::uint32_t>(127 - Format::kBias) << 23;
  constexpr std::uint32_t kSpecialRebias = static_cast<std::uint32_t>(254 - 2 * Format::kBias) << 23;
  constexpr float kSmallest = 1.0F / static_cast<float>(1ULL << (Format::kBias - 1 + Format::kMantissa));
  const hn::RebindToUnsigned<DF> du;
  const hn::RebindToSigned<DF> di;
  const auto sign = hn::ShiftLeft<32 - Format::kBits>(hn::And(bits, hn::Set(du, kSign)));
  const auto magnitude = hn::And(bits, hn::Set(du, kSign - 1));
  const auto signed_magnitude = hn::BitCast(di, magnitude);
  const auto special = hn::RebindMask(du, hn::Gt(signed_magnitude, hn::Set(di, Format::kLargest)));
  const auto normal = hn::Add(hn::ShiftLeft<kShift>(magnitude), hn::Set(du, kRebias));
  const auto small =  // a denormal is an integer multiple of the smallest one
      hn::BitCast(du, hn::Mul(hn::ConvertTo(d, signed_magnitude), hn::Set(d, kSmallest)));
  const auto denormal = hn::RebindMask(du, hn::Lt(signed_magnitude, hn::Set(di, 1 << Format::kMantissa)));
  const auto beyond = Format::kBeyondLargest == Format::kLargest
                          ? hn::Set(du, 0x7FC00000U)
                          : hn::Add(hn::ShiftLeft<kShift>(magnitude), hn::Set(du, kSpecialRebias));
  const auto finite = hn::IfThenElse(denormal, small, normal);
  return hn::BitCast(d, hn::Or(sign, hn::IfThenElse(special, beyond, finite)));
}

/// Rounds to nearest, ties to even. Every NaN becomes the positive Format::kNaN.
template <class Format, class DF>
ACCORD_INLINE_CONVERSION hn::Vec<hn::RebindToUnsigned<DF>> FloatToMinifloat(DF d, hn::Vec<DF> v) {
  constexpr int kShift = 23 - Format::kMantissa;
  constexpr std::uint32_t kRebias = static_cast<std::uint32_t>(127 - Format::kBias) << 23;
  // A float whose last bit has the value of the format's smallest denormal. Adding it leaves the value, in units of
  // that denormal, in the low bits, already rounded by the adder.
  constexpr int kExponent = 24 - Format::kBias - Format::kMantissa;
  constexpr float kRounder = kExponent < 0 ? 1.0F / static_cast<float>(1 << -kExponent)
                                           : static_cast<float>(1 << (kExponent < 0 ? 0 : kExponent));
  const hn::RebindToUnsigned<DF> du;
  const hn::RebindToSigned<DF> di;
  const auto bits = hn::BitCast(du, v);
  const auto sign = hn::ShiftRight<32 - Format::kBits>(hn::And(bits, hn::Set(du, 0x80000000U)));
  const auto magnitude = hn::And(bits, hn::Set(du, 0x7FFFFFFFU));
  const auto signed_magnitude = hn::BitCast(di, magnitude);
  const auto odd = hn::And(hn::ShiftRight<kShift>(magnitude), hn::Set(du, 1U));
  const auto rebiased = hn::Sub(hn::Add(magnitude, hn::Set(du, (1U << (kShift - 1)) - 1)), hn::Set(du, kRebias));
  const auto normal = hn::ShiftRight<kShift>(hn::Add(rebiased, odd));
  const auto rounder = hn::Set(d, kRounder);
  const auto small = hn::Sub(hn::BitCast(du, hn::Add(hn::BitCast(d, magnitude), rounder)), hn::BitCast(du, rounder));
  const auto is_small = hn::RebindMask(du, hn::Lt(signed_magnitude, hn::Set(di, (128 - Format::kBias) << 23)));
  const auto finite = hn::IfThenElse(is_small, small, normal);
  const auto is_beyond = hn::RebindMask(du, hn::Gt(hn::BitCast(di, finite), hn::Set(di, Format::kLargest)));
  const auto is_nan = hn::RebindMask(du, hn::Gt(signed_magnitude, hn::Set(di, 0x7F800000)));
  const auto nan = hn::Set(du, static_cast<std::uint32_t>(Format::kNaN));
  const auto beyond = hn::Set(du, static_cast<std::uint32_t>(Format::kBeyondLargest));
  return hn::IfThenElse(is_nan, nan, hn::Or(sign, hn::IfThenElse(is_beyond, beyond, finite)));
}

}  // namespace accord::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
