// Reductions of float32 and float64, computed in their own precision.

#include "kernels/reduce/families.hpp"
#include "kernels/simd_targets.hpp"

// Highway's files must come in this order.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/reduce/float.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
#include "kernels/half_simd.hpp"
#include "kernels/reduce/loops_simd.hpp"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace accord::kernels::HWY_NAMESPACE {

template <typename T>
struct Float : InOrder<Float<T>, sizeof(T)> {
  using Tag = hn::ScalableTag<T>;
  template <class D>
  static HWY_INLINE hn::Vec<D> Load(D d, const std::byte* from) {
    return LoadAnywhere(d, from);
  }
  template <class D>
  static HWY_INLINE void Store(D d, hn::Vec<D> v, std::byte* to) {
    StoreAnywhere(d, CanonicalNaN(d, v), to);
  }
};

ReduceKernel SelectWide(DType dtype, ReduceOp op) {
  return dtype == DType::kFloat32 ? SelectOfFloats<Float<float>, Unrolled::kToFour>(op)
                                  : SelectOfFloats<Float<double>, Unrolled::kPairs>(op);
}

}  // namespace accord::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace accord::kernels {

HWY_EXPORT(SelectWide);

ReduceKernel float_reduce_kernel(DType dtype, ReduceOp op) { return HWY_DYNAMIC_DISPATCH(SelectWide)(dtype, op); }

}  // namespace accord::kernels
#endif
