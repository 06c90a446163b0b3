// Vectors of fp32 from and to rows in fp32, bfloat16 and fp16.
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

/// Rounded to nearest even; every NaN becomes the positive quiet one in 16 bits.
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

}  // namespace accord::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
