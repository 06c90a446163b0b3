// One pass over the sums, vector by vector. The sums are stored in whole panels, so only the caller's inputs and
// outputs can end within a vector.

#include "kernels/linear/epilogue.hpp"

#include "kernels/simd_targets.hpp"

// Highway's files must come in this order.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/linear/epilogue.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
#include "kernels/half_simd.hpp"
#include "kernels/math_simd.hpp"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace accord::kernels::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using Floats = hn::CappedTag<float, 16>;  // divides the width of every panel
using Vector = hn::Vec<Floats>;

template <typename T, class D>
HWY_INLINE hn::Vec<D> LoadFirst(D d, const void* row, std::int64_t at, std::size_t count) {
  const T* const from = static_cast<const T*>(row) + at;
  return count == hn::Lanes(d) ? hn::LoadU(d, from) : LoadPart(d, from, count, T{0});
}

// Loads `count` values, starting at `at`, of a row of any float type.
HWY_INLINE Vector LoadFloats(DType dtype, const void* row, std::int64_t at, std::size_t count) {
  const Floats d;
  if (dtype == DType::kFloat32) return LoadFirst<float>(d, row, at, count);
  const auto halves = LoadFirst<std::uint16_t>(Halves<Floats>(), row, at, count);
  return dtype == DType::kBFloat16 ? BFloat16ToFloat(d, halves) : Float16ToFloat(d, halves);
}

template <typename T, class D>
HWY_INLINE void StoreFirst(D d, hn::Vec<D> v, void* row, std::int64_t at, std::size_t count) {
  T* const to = static_cast<T*>(row) + at;
  if (count == hn::Lanes(d)) return hn::StoreU(v, d, to);
  StorePart(d, v, to, count);
}

HWY_INLINE void StoreFloats(DType dtype, Vector v, void* row, std::int64_t at, std::size_t count) {
  const Floats d;
  if (dtype == DType::kFloat32) return StoreFirst<float>(d, v, row, at, count);
  const Vector rounded = CanonicalNaN(d, v);
  const auto halves = dtype == DType::kBFloat16 ? FloatToBFloat16(d, rounded) : FloatToFloat16(d, rounded);
  StoreFirst<std::uint16_t>(Halves<Floats>(), halves, row, at, count);
}

void RunEpilogue(const EpilogueCall& call) {
  const Floats d;
  const std::int64_t lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const std::int64_t residual_bytes = call.residual.stride * static_cast<std::int64_t>(size_of(call.residual.dtype));
  const std::int64_t y_bytes = call.y.stride * static_cast<std::int64_t>(size_of(call.y.dtype));
  for (std::int64_t row = 0; row < call.rows; ++row) {
    for (std::int64_t at = 0; at < call.columns; at += lanes) {
      const std::size_t count = static_cast<std::size_t>(call.columns - at < lanes ? call.columns - at : lanes);
      auto y = hn::LoadU(d, call.sums + row * kAccumulatorStride + at);
      if (call.bias != nullptr) y = hn::Add(y, LoadFirst<float>(d, call.bias, at, count));
      if (call.gate == nullptr) {
        y = Activate(d, call.activation, y);
      } else {
        auto gate = hn::LoadU(d, call.gate + row * kAccumulatorStride + at);
        if (call.gate_bias != nullptr) gate = hn::Add(gate, LoadFirst<float>(d, call.gate_bias, at, count));
        y = hn::Mul(Activate(d, call.activation, gate), y);
      }
      if (call.residual.data != nullptr) {
        const std::byte* const residual = static_cast<const std::byte*>(call.residual.data) + row * residual_bytes;
        y = hn::Add(y, LoadFloats(call.residual.dtype, residual, at, count));
      }
      StoreFloats(call.y.dtype, y, static_cast<std::byte*>(call.y.data) + row * y_bytes, at, count);
    }
  }
}

}  // namespace accord::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace accord::kernels {

HWY_EXPORT(RunEpilogue);

void run_epilogue(const EpilogueCall& call) { HWY_DYNAMIC_DISPATCH(RunEpilogue)(call); }

}  // namespace accord::kernels
#endif
