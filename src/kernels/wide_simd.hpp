// Loads and stores vectors of fp32 from and to rows of fp32, bfloat16 and fp16.
// Included once per Highway target; the guard below follows Highway's rule for such files.

#if defined(ACCORD_KERNELS_WIDE_SIMD_HPP_) == defined(HWY_TARGET_TOGGLE)
#ifdef ACCORD_KERNELS_WIDE_SIMD_HPP_
#undef ACCORD_KERNELS_WIDE_SIMD_HPP_
#else
#define ACCORD_KERNELS_WIDE_SIMD_HPP_
#endif

#include <hwy/highway.h>

#include "kernels/half_simd.hpp"

HWY_BEFORE_NAMESPACE();
namespace accord::kernels::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

template <class DF>
HWY_INLINE hn::Vec<DF> LoadWide(DF d, const float* from) {
  return hn::LoadU(d, from);
}
template <class DF>
HWY_INLINE hn::Vec<DF> LoadWide(DF d, const BFloat16* from) {
  return BFloat16ToFloat(d, hn::LoadU(Halves<DF>(), reinterpret_cast<const std::uint16_t*>(from)));
}
template <class DF>
HWY_INLINE hn::Vec<DF> LoadWide(DF d, const Float16* from) {
  return Float16ToFloat(d, hn::LoadU(Halves<DF>(), reinterpret_cast<const std::uint16_t*>(from)));
}

/// Rounds to nearest even and stores; in 16 bits, every NaN becomes the positive quiet one.
template <class DF>
HWY_INLINE void StoreNarrow(DF d, hn::Vec<DF> v, float* to) {
  hn::StoreU(v, d, to);
}
template <class DF>
HWY_INLINE void StoreNarrow(DF d, hn::Vec<DF> v, BFloat16* to) {
  hn::StoreU(FloatToBFloat16(d, CanonicalNaN(d, v)), Halves<DF>(), reinterpret_cast<std::uint16_t*>(to));
}
template <class DF>
HWY_INLINE void StoreNarrow(DF d, hn::Vec<DF> v, Float16* to) {
  hn::StoreU(FloatToFloat16(d, CanonicalNaN(d, v)), Halves<DF>(), reinterpret_cast<std::uint16_t*>(to));
}

/// Returns the value that StoreNarrow would leave in memory.
template <class DF>
HWY_INLINE hn::Vec<DF> Rounded(DF /*d*/, hn::Vec<DF> v, const float*) {
  return v;
}
template <class DF>
HWY_INLINE hn::Vec<DF> Rounded(DF d, hn::Vec<DF> v, const BFloat16*) {
  return OddBFloat16ToFloat(d, RoundToBFloat16(d, CanonicalNaN(d, v)));
}
template <class DF>
HWY_INLINE hn::Vec<DF> Rounded(DF d, hn::Vec<DF> v, const Float16*) {
  return Float16ToFloat(d, FloatToFloat16(d, CanonicalNaN(d, v)));
}

/// Loads the first (kHalf 0) or second half of two vectors' elements at `from`. For bfloat16 the halves are the even
/// and the odd elements, which are cheaper to separate and to combine. Suitable where all elements are treated alike.
template <int kHalf, class DF, typename T>
HWY_INLINE hn::Vec<DF> LoadHalf(DF d, const T* from) {
  return LoadWide(d, from + kHalf * hn::Lanes(d));
}
template <int kHalf, class DF>
HWY_INLINE hn::Vec<DF> LoadHalf(DF d, const BFloat16* from) {
  const auto words = LoadAnywhere(hn::RebindToUnsigned<DF>(), from);
  return kHalf == 0 ? EvenBFloat16ToFloat(d, words) : OddBFloat16ToFloat(d, words);
}

/// Stores both halves, and leaves in them the values that LoadHalf would read back.
template <class DF, class V = hn::Vec<DF>>
HWY_INLINE void StoreHalves(DF d, V& first, V& second, float* to) {
  hn::StoreU(first, d, to);
  hn::StoreU(second, d, to + hn::Lanes(d));
}
template <class DF, class V = hn::Vec<DF>>
HWY_INLINE void StoreHalves(DF d, V& first, V& second, Float16* to) {
  auto* const halves = reinterpret_cast<std::uint16_t*>(to);
  const auto low = FloatToFloat16(d, CanonicalNaN(d, first));
  const auto high = FloatToFloat16(d, CanonicalNaN(d, second));
  hn::StoreU(low, Halves<DF>(), halves);
  hn::StoreU(high, Halves<DF>(), halves + hn::Lanes(d));
  first = Float16ToFloat(d, low);
  second = Float16ToFloat(d, high);
}
template <class DF, class V = hn::Vec<DF>>
HWY_INLINE void StoreHalves(DF d, V& first, V& second, BFloat16* to) {
  const hn::RebindToUnsigned<DF> du;
  const auto even = RoundToBFloat16(d, CanonicalNaN(d, first));
  const auto odd = RoundToBFloat16(d, CanonicalNaN(d, second));
  StoreAnywhere(du, PairOfBFloat16(du, even, odd), to);
  first = OddBFloat16ToFloat(d, even);
  second = OddBFloat16ToFloat(d, odd);
}

}  // namespace accord::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
