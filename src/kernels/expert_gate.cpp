// One pass over the values, vector by vector.
#include "kernels/expert_gate.hpp"

#include "kernels/simd_targets.hpp"

// Highway's files must come in this order.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/expert_gate.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
#include "kernels/math_simd.hpp"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace accord::kernels::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using Floats = hn::ScalableTag<float>;
using Vector = hn::Vec<Floats>;

HWY_INLINE Vector Inner(const GateOptions& options, Vector gate, Vector up, bool has_gate) {
  const Floats d;
  if (options.limit > 0.0F) {
    const Vector limit = hn::Set(d, options.limit);
    gate = KeepNaN(d, gate, hn::Min(gate, limit));
    up = KeepNaN(d, up, hn::Max(hn::Min(up, limit), hn::Neg(limit)));
  }
  up = hn::Add(up, hn::Set(d, options.offset));
  if (!has_gate) return Activate(d, options.activation, up);
  if (options.alpha == 1.0F) return hn::Mul(Activate(d, options.activation, gate), up);
  const Vector active = Activate(d, options.activation, hn::Mul(gate, hn::Set(d, options.alpha)));
  return hn::Mul(hn::Div(active, hn::Set(d, options.alpha)), up);
}

void GateRows(const GateCall& call) {
  const Floats d;
  const auto width = static_cast<std::size_t>(call.width);
  const std::size_t lanes = hn::Lanes(d);
  for (std::int64_t row = 0; row < call.rows; ++row) {
    const float* const gate = call.gate == nullptr ? nullptr : call.gate + row * call.width;
    float* const up = call.up + row * call.width;
    for (std::size_t i = 0; i < width; i += lanes) {
      const std::size_t count = width - i < lanes ? width - i : lanes;
      const auto load = [&](const float* from) {
        if (from == nullptr) return hn::Zero(d);
        return count == lanes ? hn::LoadU(d, from + i) : LoadPart(d, from + i, count, 0.0F);
      };
      const Vector inner = Inner(call.options, hn::Add(load(gate), load(call.gate_bias)),
                                 hn::Add(load(up), load(call.up_bias)), gate != nullptr);
      if (count == lanes) {
        hn::StoreU(inner, d, up + i);
      } else {
        StorePart(d, inner, up + i, count);
      }
    }
  }
}

}  // namespace accord::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace accord::kernels {

HWY_EXPORT(GateRows);

void gate_rows(const GateCall& call) { HWY_DYNAMIC_DISPATCH(GateRows)(call); }

}  // namespace accord::kernels
#endif
