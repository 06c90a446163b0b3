// Converts 16-bit floats to and from fp32, vector by vector, bit-identical on every instruction set. Uses F16C where
// Highway has it and integer arithmetic elsewhere: Highway's own fallback does not handle infinities and NaN, and its
// bfloat16 conversion truncates.
// Included once per Highway target; the guard below follows Highway's rule for such files.

#if defined(ACCORD_KERNELS_HALF_SIMD_HPP_) == defined(HWY_TARGET_TOGGLE)
#ifdef ACCORD_KERNELS_HALF_SIMD_HPP_
#undef ACCORD_KERNELS_HALF_SIMD_HPP_
#else
#define ACCORD_KERNELS_HALF_SIMD_HPP_
#endif

#include <hwy/highway.h>

#include <cstring>

#include "kernels/minifloat_simd.hpp"

HWY_BEFORE_NAMESPACE();
namespace accord::kernels::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

/// Loads and stores of any alignment. On the scalar target, Highway's own require the element's alignment.
template <class D, typename T = hn::TFromD<D>>
HWY_INLINE hn::Vec<D> LoadAnywhere(D d, const void* from) {
#if HWY_TARGET == HWY_SCALAR
  T value;
  std::memcpy(&value, from, sizeof(T));
  return hn::Set(d, value);
#else
  return hn::LoadU(d, static_cast<const T*>(from));
#endif
}
template <class D, typename T = hn::TFromD<D>>
HWY_INLINE void StoreAnywhere([[maybe_unused]] D d, hn::Vec<D> v, void* to) {
#if HWY_TARGET == HWY_SCALAR
  const T value = hn::GetLane(v);
  std::memcpy(to, &value, sizeof(T));
#else
  hn::StoreU(v, d, static_cast<T*>(to));
#endif
}

/// Replaces every NaN by the positive quiet NaN and leaves other values unchanged.
template <class DF, class V = hn::Vec<DF>>
HWY_INLINE V CanonicalNaN(DF d, V v) {
  const hn::RebindToUnsigned<DF> du;
  if constexpr (sizeof(hn::TFromD<DF>) == 8) {
    return hn::IfThenElse(hn::IsNaN(v), hn::BitCast(d, hn::Set(du, 0x7FF8000000000000U)), v);
  } else {
    return hn::IfThenElse(hn::IsNaN(v), hn::BitCast(d, hn::Set(du, 0x7FC00000U)), v);
  }
}

/// Rounds `v` to bfloat16, to nearest even. The result is fp32 bits whose upper 16 bits are the bfloat16.
/// REQUIRES: any NaN in `v` is canonical.
template <class DF>
HWY_INLINE hn::Vec<hn::RebindToUnsigned<DF>> RoundToBFloat16(DF /*d*/, hn::Vec<DF> v) {
  const hn::RebindToUnsigned<DF> du;
  const auto bits = hn::BitCast(du, v);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1U));
  return hn::Add(hn::Add(bits, hn::Set(du, 0x7FFFU)), odd);
}

template <class DF>
using Halves = hn::Rebind<std::uint16_t, DF>;  // as many 16-bit lanes as DF has

template <class DF>
HWY_INLINE hn::Vec<DF> BFloat16ToFloat(DF d, hn::Vec<Halves<DF>> halves) {
  const hn::RebindToUnsigned<DF> du;
  return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(du, halves)));
}

/// REQUIRES: any NaN in `v` is canonical.
template <class DF>
HWY_INLINE hn::Vec<Halves<DF>> FloatToBFloat16(DF d, hn::Vec<DF> v) {
  const hn::RebindToSigned<DF> di;
  return hn::DemoteTo(Halves<DF>(), hn::BitCast(di, hn::ShiftRight<16>(RoundToBFloat16(d, v))));
}

/// A 32-bit word holds two bfloat16, which become fp32 without moving data between lanes: a shift extracts the even
/// element (the lower half), a mask extracts the odd one.
template <class DF>
HWY_INLINE hn::Vec<DF> EvenBFloat16ToFloat(DF d, hn::Vec<hn::RebindToUnsigned<DF>> words) {
  return hn::BitCast(d, hn::ShiftLeft<16>(words));
}
template <class DF>
HWY_INLINE hn::Vec<DF> OddBFloat16ToFloat(DF d, hn::Vec<hn::RebindToUnsigned<DF>> words) {
  return hn::BitCast(d, hn::And(words, hn::Set(hn::RebindToUnsigned<DF>(), 0xFFFF0000U)));
}
/// Combines fp32 bits whose upper halves are bfloat16 into words of two bfloat16 each.
template <class DF>
HWY_INLINE hn::Vec<DF> PairOfBFloat16(DF du, hn::Vec<DF> even, hn::Vec<DF> odd) {
  return hn::Or(hn::ShiftRight<16>(even), hn::And(odd, hn::Set(du, 0xFFFF0000U)));
}

template <class DF>
HWY_INLINE hn::Vec<DF> Float16ToFloat(DF d, hn::Vec<Halves<DF>> halves) {
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
  const hn::Rebind<hwy::float16_t, DF> df16;
  return hn::PromoteTo(d, hn::BitCast(df16, halves));
#else
  return MinifloatToFloat<Half>(d, hn::PromoteTo(hn::RebindToUnsigned<DF>(), halves));
#endif
}

template <class DF>
HWY_INLINE hn::Vec<Halves<DF>> FloatToFloat16([[maybe_unused]] DF d, hn::Vec<DF> v) {
  const Halves<DF> dh;
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
  const hn::Rebind<hwy::float16_t, DF> df16;
  return hn::BitCast(dh, hn::DemoteTo(df16, v));
#else
  return hn::DemoteTo(dh, hn::BitCast(hn::RebindToSigned<DF>(), FloatToMinifloat<Half>(d, v)));
#endif
}

}  // namespace accord::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
