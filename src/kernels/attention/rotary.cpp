// An element and the one half a head further on are rotated together. If half a head is not a multiple of a vector,
// the remainder uses partially loaded vectors.
#include "kernels/attention/rotary.hpp"

#include <algorithm>
#include <cstddef>

#include "kernels/simd_targets.hpp"

// Highway's files must come in this order.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/attention/rotary.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
#include "kernels/math_simd.hpp"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace accord::kernels::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Computes y = a * cos - b * sin and z = b * cos' + a * sin' for one vector at `at`. b, z, cos' and sin' are half a
// row further on.
template <class Load, class Store>
HWY_INLINE void RotateVectors(const float* x, const float* cos, const float* sin, float* y, std::size_t half,
                              std::size_t at, Load load, Store store) {
  const auto a = load(x + at);
  const auto b = load(x + half + at);
  store(hn::NegMulAdd(b, load(sin + at), hn::Mul(a, load(cos + at))), y + at);
  store(hn::MulAdd(a, load(sin + half + at), hn::Mul(b, load(cos + half + at))), y + half + at);
}

void RotateHead(const float* x, const float* cos, const float* sin, float* y, std::size_t half) {
  const hn::ScalableTag<float> d;
  using Vector = hn::Vec<decltype(d)>;
  const std::size_t lanes = hn::Lanes(d);
  std::size_t i = 0;
  for (; i + lanes <= half; i += lanes) {
    RotateVectors(
        x, cos, sin, y, half, i, [&](const float* from) HWY_ATTR { return hn::LoadU(d, from); },
        [&](Vector v, float* to) HWY_ATTR { hn::StoreU(v, d, to); });
  }
  if (i == half) return;
  RotateVectors(
      x, cos, sin, y, half, i, [&](const float* from) HWY_ATTR { return LoadPart(d, from, half - i, 0.0F); },
      [&](Vector v, float* to) HWY_ATTR { StorePart(d, v, to, half - i); });
}

}  // namespace accord::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace accord::kernels {

HWY_EXPORT(RotateHead);

void rotary(const RotaryCall& call) {
  for (std::int64_t row = 0; row < call.rows; ++row) {
    const std::int64_t table = row * call.table_row_stride;
    for (std::int64_t head = 0; head < call.heads; ++head) {
      HWY_DYNAMIC_DISPATCH(RotateHead)
      (call.x + row * call.x_row_stride + head * call.x_head_stride, call.cos + table, call.sin + table,
       call.y + row * call.y_row_stride + head * call.y_head_stride, static_cast<std::size_t>(call.dim / 2));
    }
  }
}

}  // namespace accord::kernels
#endif
