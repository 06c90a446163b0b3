// Vector versions of exp, erf, tanh and functions built on them. Included once per Highway target (see
// half_simd.hpp).
//
// exp: x = n ln2 + r with |r| <= ln2 / 2; a polynomial of degree 6 in r (approximation error 8e-9), and 2^n through
// the exponent bits.
// erf and tanh: odd rational functions x P(x^2) / Q(x^2), minimax in relative error up to the point where the result
// rounds to 1 (2e-8 and 2e-9 before rounding). The coefficients were found by weighted least squares in extended
// precision against mpmath.

#if defined(ACCORD_KERNELS_MATH_SIMD_HPP_) == defined(HWY_TARGET_TOGGLE)
#ifdef ACCORD_KERNELS_MATH_SIMD_HPP_
#undef ACCORD_KERNELS_MATH_SIMD_HPP_
#else
#define ACCORD_KERNELS_MATH_SIMD_HPP_
#endif

#include <hwy/highway.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/activation.hpp"

HWY_BEFORE_NAMESPACE();
namespace accord::kernels::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Loads and stores part of a vector: `count` < Lanes(d) elements. The other lanes are `fill`, and their memory is not
// touched.
template <class D, typename T = hn::TFromD<D>>
HWY_INLINE hn::Vec<D> LoadPart(D d, const T* from, std::size_t count, T fill) {
  HWY_ALIGN T lanes[hn::MaxLanes(D())];
  hn::Store(hn::Set(d, fill), d, lanes);
  std::memcpy(lanes, from, count * sizeof(T));
  return hn::Load(d, lanes);
}
template <class D, typename T = hn::TFromD<D>>
HWY_INLINE void StorePart(D d, hn::Vec<D> v, T* to, std::size_t count) {
  HWY_ALIGN T lanes[hn::MaxLanes(D())];
  hn::Store(v, d, lanes);
  std::memcpy(to, lanes, count * sizeof(T));
}

// Returns e^r of the decomposition above, and n.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V ExpFraction(D d, V x, V& n) {
  n = hn::Round(hn::Mul(x, hn::Set(d, 1.44269504088896341F)));
  V r = hn::NegMulAdd(n, hn::Set(d, 0.693359375F), x);
  r = hn::NegMulAdd(n, hn::Set(d, -2.12194440e-4F), r);
  V p = hn::Set(d, 0.00139262508315F);
  p = hn::MulAdd(p, r, hn::Set(d, 0.00836323288368F));
  p = hn::MulAdd(p, r, hn::Set(d, 0.041666554213F));
  p = hn::MulAdd(p, r, hn::Set(d, 0.166665766661F));
  p = hn::MulAdd(p, r, hn::Set(d, 0.5F));
  return hn::MulAdd(hn::Mul(r, r), p, hn::Add(r, hn::Set(d, 1.0F)));
}

// 2^n for integers n in [-126, 127].
template <class D, class VI>
HWY_INLINE hn::Vec<D> PowerOfTwo(D d, VI n) {
  const hn::RebindToSigned<D> di;
  return hn::BitCast(d, hn::ShiftLeft<23>(hn::Add(n, hn::Set(di, 127))));
}

/// exp(x) for any x. Error at most 1.5 ulp, with gradual underflow; infinities and NaN behave as in std::exp.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V ExpOfAny(D d, V x) {
  const hn::RebindToSigned<D> di;
  V n;
  const V p = ExpFraction(d, hn::Min(hn::Max(x, hn::Set(d, -104.0F)), hn::Set(d, 89.0F)), n);
  const auto whole = hn::ConvertTo(di, n);
  const auto half = hn::ShiftRight<1>(whole);  // two factors, because 2^128 and 2^-149 are not normal floats
  const V result = hn::Mul(hn::Mul(p, PowerOfTwo(d, half)), PowerOfTwo(d, hn::Sub(whole, half)));
  return hn::IfThenElse(hn::IsNaN(x), x, result);
}

/// exp(x) for x <= 0, the inner loop of softmax. Results below 1.2e-38 become 0; NaN stays NaN.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V ExpNonPositive(D d, V x) {
  const hn::RebindToSigned<D> di;
  const V lowest = hn::Set(d, -87.33F);
  V n;
  const V p = ExpFraction(d, hn::Max(lowest, x), n);  // a NaN as the second operand is kept
  const V result = hn::Mul(p, PowerOfTwo(d, hn::ConvertTo(di, n)));
  return hn::IfThenElse(hn::IsNaN(x), x, hn::IfThenZeroElse(hn::Lt(x, lowest), result));
}

template <class D, class V = hn::Vec<D>>
HWY_INLINE V WithinOne(D d, V x) {
  return hn::Min(hn::Max(x, hn::Set(d, -1.0F)), hn::Set(d, 1.0F));
}

/// erf(x) with relative error at most 4e-7. A NaN may become a number: callers that promise NaN restore it.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V ErfOfNumber(D d, V x) {
  const V z = hn::Min(hn::Max(x, hn::Set(d, -3.95F)), hn::Set(d, 3.95F));
  const V s = hn::Mul(z, z);
  V p = hn::Set(d, 2.0258328277122928e-06F);
  p = hn::MulAdd(p, s, hn::Set(d, 0.00028464969363994896F));
  p = hn::MulAdd(p, s, hn::Set(d, 0.00380723481066525F));
  p = hn::MulAdd(p, s, hn::Set(d, 0.05287252366542816F));
  p = hn::MulAdd(p, s, hn::Set(d, 0.19153118133544922F));
  p = hn::MulAdd(p, s, hn::Set(d, 1.1283791065216064F));
  V q = hn::Set(d, 3.78290205844678e-05F);
  q = hn::MulAdd(q, s, hn::Set(d, 0.001170468982309103F));
  q = hn::MulAdd(q, s, hn::Set(d, 0.01505324523895979F));
  q = hn::MulAdd(q, s, hn::Set(d, 0.1145513653755188F));
  q = hn::MulAdd(q, s, hn::Set(d, 0.5030727982521057F));
  q = hn::MulAdd(q, s, hn::Set(d, 1.0F));
  return WithinOne(d, hn::Div(hn::Mul(z, p), q));
}

/// tanh(x) with relative error at most 4e-7. NaN is handled as in ErfOfNumber.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V TanhOfNumber(D d, V x) {
  const V z = hn::Min(hn::Max(x, hn::Set(d, -9.02F)), hn::Set(d, 9.02F));
  const V s = hn::Mul(z, z);
  V p = hn::Set(d, -1.2201758700647325e-11F);
  p = hn::MulAdd(p, s, hn::Set(d, 3.0582761212372134e-08F));
  p = hn::MulAdd(p, s, hn::Set(d, 2.8006545107928105e-05F));
  p = hn::MulAdd(p, s, hn::Set(d, 0.0038682834710925817F));
  p = hn::MulAdd(p, s, hn::Set(d, 0.13679879903793335F));
  p = hn::MulAdd(p, s, hn::Set(d, 1.0F));
  V q = hn::Set(d, 1.2873017567471834e-06F);
  q = hn::MulAdd(q, s, hn::Set(d, 0.00039385523996315897F));
  q = hn::MulAdd(q, s, hn::Set(d, 0.02724567800760269F));
  q = hn::MulAdd(q, s, hn::Set(d, 0.47013211250305176F));
  q = hn::MulAdd(q, s, hn::Set(d, 1.0F));
  return WithinOne(d, hn::Div(hn::Mul(z, p), q));
}

template <class D, class V = hn::Vec<D>>
HWY_INLINE V KeepNaN(D /*d*/, V x, V result) {
  return hn::IfThenElse(hn::IsNaN(x), x, result);
}
template <class D, class V = hn::Vec<D>>
HWY_INLINE V ErfOfAny(D d, V x) {
  return KeepNaN(d, x, ErfOfNumber(d, x));
}
template <class D, class V = hn::Vec<D>>
HWY_INLINE V TanhOfAny(D d, V x) {
  return KeepNaN(d, x, TanhOfNumber(d, x));
}

/// x / 2 (1 + erf(x / sqrt 2)). NaN propagates through the factor x.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V GeluErf(D d, V x) {
  const V half = hn::Mul(x, hn::Set(d, 0.5F));
  return hn::MulAdd(half, ErfOfNumber(d, hn::Mul(x, hn::Set(d, 0.70710678118654752F))), half);
}

/// x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))).
template <class D, class V = hn::Vec<D>>
HWY_INLINE V GeluTanh(D d, V x) {
  const V half = hn::Mul(x, hn::Set(d, 0.5F));
  const V cube = hn::Mul(hn::Mul(x, x), x);
  const V inner = hn::Mul(hn::MulAdd(cube, hn::Set(d, 0.044715F), x), hn::Set(d, 0.79788456080286536F));
  return hn::MulAdd(half, TanhOfNumber(d, inner), half);
}

template <class D, class V = hn::Vec<D>>
HWY_INLINE V Sigmoid(D d, V x) {
  const V one = hn::Set(d, 1.0F);
  return hn::Div(one, hn::Add(one, ExpOfAny(d, hn::Neg(x))));
}
template <class D, class V = hn::Vec<D>>
HWY_INLINE V Silu(D d, V x) {
  return hn::Div(x, hn::Add(hn::Set(d, 1.0F), ExpOfAny(d, hn::Neg(x))));
}

template <class D, class V = hn::Vec<D>>
HWY_INLINE V Activate(D d, Activation activation, V x) {
  switch (activation) {
    case Activation::kNone: return x;
    case Activation::kGeluErf: return GeluErf(d, x);
    case Activation::kGeluTanh: return GeluTanh(d, x);
    case Activation::kRelu: return KeepNaN(d, x, hn::Max(x, hn::Zero(d)));
    case Activation::kSilu: return Silu(d, x);
    case Activation::kTanh: return TanhOfAny(d, x);
    case Activation::kReluSquared: {
      const V positive = KeepNaN(d, x, hn::Max(x, hn::Zero(d)));
      return hn::Mul(positive, positive);
    }
  }
  return x;
}

/// The steps of a softmax over `count` > 0 contiguous floats. MaxOfRow does not detect NaN; NaN appears in the
/// exponentials.
template <class D>
HWY_INLINE float MaxOfRow(D d, const float* row, std::size_t count) {
  const std::size_t lanes = hn::Lanes(d);
  const float lowest = -__builtin_inff();
  auto m0 = hn::Set(d, lowest), m1 = m0;
  std::size_t i = 0;
  for (; i + 2 * lanes <= count; i += 2 * lanes) {
    m0 = hn::Max(m0, hn::LoadU(d, row + i));
    m1 = hn::Max(m1, hn::LoadU(d, row + i + lanes));
  }
  for (; i + lanes <= count; i += lanes) m0 = hn::Max(m0, hn::LoadU(d, row + i));
  if (i < count) m1 = hn::Max(m1, LoadPart(d, row + i, count - i, lowest));
  const auto m = hn::Max(m0, m1);
  if (hn::AllTrue(d, hn::Eq(m, hn::Set(d, lowest))))
    return lowest;  // EMU128's MaxOfLanes starts at the lowest finite number
  return hn::GetLane(hn::MaxOfLanes(d, m));
}

/// Computes to[i] = exp(from[i] - max) and returns the sum.
template <class D>
HWY_INLINE float ExpOfRow(D d, const float* from, float* to, std::size_t count, float max) {
  const std::size_t lanes = hn::Lanes(d);
  const auto m = hn::Set(d, max);
  auto s0 = hn::Zero(d), s1 = s0;
  std::size_t i = 0;
  for (; i + 2 * lanes <= count; i += 2 * lanes) {
    const auto e0 = ExpNonPositive(d, hn::Sub(hn::LoadU(d, from + i), m));
    const auto e1 = ExpNonPositive(d, hn::Sub(hn::LoadU(d, from + i + lanes), m));
    hn::StoreU(e0, d, to + i);
    hn::StoreU(e1, d, to + i + lanes);
    s0 = hn::Add(s0, e0);
    s1 = hn::Add(s1, e1);
  }
  for (; i < count; i += lanes) {
    const std::size_t part = count - i < lanes ? count - i : lanes;
    const auto e = ExpNonPositive(d, hn::Sub(LoadPart(d, from + i, part, -__builtin_inff()), m));
    StorePart(d, e, to + i, part);
    s0 = hn::Add(s0, e);
  }
  return hn::GetLane(hn::SumOfLanes(d, hn::Add(s0, s1)));
}

}  // namespace accord::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
