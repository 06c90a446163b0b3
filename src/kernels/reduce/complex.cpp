// Reductions of complex numbers, which are held as a vector of real parts and a vector of imaginary parts.

#include "kernels/reduce/families.hpp"
#include "kernels/simd_targets.hpp"

// Highway's files must come in this order.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/reduce/complex.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
#include "kernels/half_simd.hpp"
#include "kernels/reduce/loops_simd.hpp"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace accord::kernels::HWY_NAMESPACE {

template <typename T>
struct Complex {
  using Tag = hn::ScalableTag<T>;
  static constexpr std::size_t kElementBytes = 2 * sizeof(T);
  static constexpr bool kIsPair = true;
  template <class D>
  static constexpr std::size_t kElements = hn::MaxLanes(D());

  template <class D>
  static HWY_INLINE Group<D> LoadGroup(D d, const std::byte* from) {
    if constexpr (hn::MaxLanes(D()) == 1) {
      return {LoadAnywhere(d, from), LoadAnywhere(d, from + sizeof(T))};
    } else {
      Group<D> group;
      hn::LoadInterleaved2(d, reinterpret_cast<const T*>(from), group.first, group.second);
      return group;
    }
  }
  template <class D>
  static HWY_INLINE void StoreGroup(D d, Group<D> group, std::byte* to) {
    const auto real = CanonicalNaN(d, group.first), imaginary = CanonicalNaN(d, group.second);
    if constexpr (hn::MaxLanes(D()) == 1) {
      StoreAnywhere(d, real, to);
      StoreAnywhere(d, imaginary, to + sizeof(T));
    } else {
      hn::StoreInterleaved2(real, imaginary, d, reinterpret_cast<T*>(to));
    }
  }
  template <class D>
  static HWY_INLINE Group<D> Multiply(Group<D> a, Group<D> b) {
    return {hn::Sub(hn::Mul(a.first, b.first), hn::Mul(a.second, b.second)),
            hn::Add(hn::Mul(a.first, b.second), hn::Mul(a.second, b.first))};
  }
  // A real factor multiplies componentwise, so that an infinite component does not turn the other one into NaN.
  template <class D>
  static HWY_INLINE Group<D> Scale(D d, Group<D> v, Factor factor) {
    const auto real = hn::Set(d, static_cast<T>(factor.real()));
    if (factor.imag() == 0) return {hn::Mul(v.first, real), hn::Mul(v.second, real)};
    return Multiply<D>(v, {real, hn::Set(d, static_cast<T>(factor.imag()))});
  }
};

template <typename T>
struct ComplexProduct : Plain {
  template <class D>
  static HWY_INLINE Group<D> Combine(D, Group<D> a, Group<D> b) {
    return Complex<T>::template Multiply<D>(a, b);
  }
};

template <typename T>
ReduceKernel SelectComplex(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum: return Reduce<Complex<T>, Sum>;
    case ReduceOp::kProduct: return Reduce<Complex<T>, ComplexProduct<T>>;
    case ReduceOp::kAvg: return Reduce<Complex<T>, Average>;
    case ReduceOp::kPremulSum: return Reduce<Complex<T>, ScaledSum>;
    default: return nullptr;
  }
}

ReduceKernel SelectByPart(DType dtype, ReduceOp op) {
  return dtype == DType::kComplex64 ? SelectComplex<float>(op) : SelectComplex<double>(op);
}

}  // namespace accord::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace accord::kernels {

HWY_EXPORT(SelectByPart);

ReduceKernel complex_reduce_kernel(DType dtype, ReduceOp op) { return HWY_DYNAMIC_DISPATCH(SelectByPart)(dtype, op); }

}  // namespace accord::kernels
#endif
