// Reductions of 8-bit and 16-bit floats: widened to fp32 when read, rounded once when the result is written.

#include "kernels/reduce/families.hpp"
#include "kernels/simd_targets.hpp"

// Highway's files must come in this order.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/reduce/narrow_float.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
#include "kernels/half_simd.hpp"
#include "kernels/reduce/loops_simd.hpp"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace accord::kernels::HWY_NAMESPACE {

struct Float16 : InOrder<Float16, 2> {
  using Tag = hn::ScalableTag<float>;
  template <class D>
  static HWY_INLINE hn::Vec<D> Load(D d, const std::byte* from) {
    return Float16ToFloat(d, LoadAnywhere(hn::Rebind<std::uint16_t, D>(), from));
  }
  template <class D>
  static HWY_INLINE void Store(D d, hn::Vec<D> v, std::byte* to) {
    StoreAnywhere(hn::Rebind<std::uint16_t, D>(), FloatToFloat16(d, CanonicalNaN(d, v)), to);
  }
};

// A group is loaded as 32-bit words: its first vector holds the even elements and its second vector the odd ones.
struct BFloat16 : InOrder<BFloat16, 2> {
  using Tag = hn::ScalableTag<float>;
  template <class D>
  static HWY_INLINE hn::Vec<D> Load(D d, const std::byte* from) {
    return BFloat16ToFloat(d, LoadAnywhere(hn::Rebind<std::uint16_t, D>(), from));
  }
  template <class D>
  static HWY_INLINE void Store(D d, hn::Vec<D> v, std::byte* to) {
    StoreAnywhere(hn::Rebind<std::uint16_t, D>(), FloatToBFloat16(d, CanonicalNaN(d, v)), to);
  }
  template <class D>
  static HWY_INLINE Group<D> LoadGroup(D d, const std::byte* from) {
    const hn::RebindToUnsigned<D> du;
    const auto words = LoadAnywhere(du, from);
    return {EvenBFloat16ToFloat(d, words), OddBFloat16ToFloat(d, words)};
  }
  template <class D>
  static HWY_INLINE void StoreGroup(D d, Group<D> group, std::byte* to) {
    const hn::RebindToUnsigned<D> du;
    const auto even = RoundToBFloat16(d, CanonicalNaN(d, group.first));
    const auto odd = RoundToBFloat16(d, CanonicalNaN(d, group.second));
    StoreAnywhere(du, PairOfBFloat16(du, even, odd), to);
  }
};

template <class Format>
struct Float8 : InOrder<Float8<Format>, 1> {
  using Tag = hn::ScalableTag<float>;
  template <class D>
  static HWY_INLINE hn::Vec<D> Load(D d, const std::byte* from) {
    const auto bytes = LoadAnywhere(hn::Rebind<std::uint8_t, D>(), from);
    return MinifloatToFloat<Format>(d, hn::PromoteTo(hn::RebindToUnsigned<D>(), bytes));
  }
  template <class D>
  static HWY_INLINE void Store(D d, hn::Vec<D> v, std::byte* to) {
    const hn::Rebind<std::uint8_t, D> bytes;
    const auto words = hn::BitCast(hn::RebindToSigned<D>(), FloatToMinifloat<Format>(d, v));
    StoreAnywhere(bytes, hn::DemoteTo(bytes, words), to);
  }
};

ReduceKernel SelectByFormat(DType dtype, ReduceOp op) {
  switch (dtype) {
    case DType::kFloat16: return SelectOfFloats<Float16, Unrolled::kToFour>(op);
    case DType::kBFloat16: return SelectOfFloats<BFloat16, Unrolled::kToFour>(op);
    case DType::kFloat8E4M3FN: return SelectOfFloats<Float8<E4M3FN>, Unrolled::kPairs>(op);
    case DType::kFloat8E5M2: return SelectOfFloats<Float8<E5M2>, Unrolled::kPairs>(op);
    default: return nullptr;
  }
}

}  // namespace accord::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace accord::kernels {

HWY_EXPORT(SelectByFormat);

ReduceKernel narrow_float_reduce_kernel(DType dtype, ReduceOp op) {
  return HWY_DYNAMIC_DISPATCH(SelectByFormat)(dtype, op);
}

}  // namespace accord::kernels
#endif
