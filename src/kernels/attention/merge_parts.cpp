// With m the largest of the parts' scores and of the sink: output = sum of exp(m_part - m) * output_part, divided by
// sum of exp(m_part - m) * sum_part plus exp(sink - m), in the order of the parts.
#include "kernels/attention/merge_parts.hpp"

#include <algorithm>
#include <cmath>

#include "kernels/simd_targets.hpp"

// Highway's files must come in this order.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/attention/merge_parts.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
#include "kernels/math_simd.hpp"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace accord::kernels::HWY_NAMESPACE {

// exp(x) of one x <= 0; 0 for -infinity.
HWY_INLINE float ExpOfOne(float x) {
  const hn::CappedTag<float, 4> d;
  return hn::GetLane(ExpNonPositive(d, hn::Set(d, x)));
}

// `from`: the first part's output of a row and head.
HWY_INLINE void MergeHead(const MergePartsCall& call, const float* from, std::int64_t head, float* to) {
  const hn::ScalableTag<float> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const std::int64_t dim = call.value_dim;
  float most = call.sinks == nullptr ? -__builtin_inff() : call.sinks[head];
  for (std::int64_t part = 0; part < call.parts; ++part) most = std::max(most, from[part * call.part_stride + dim]);
  std::fill(to, to + dim, 0.0F);
  float sum = call.sinks == nullptr ? 0.0F : ExpOfOne(call.sinks[head] - most);
  for (std::int64_t part = 0; part < call.parts; ++part) {
    const float* const its = from + part * call.part_stride;
    const float factor = ExpOfOne(its[dim] - most);
    const auto factors = hn::Set(d, factor);
    sum += factor * its[dim + 1];
    std::int64_t i = 0;
    for (; i + lanes <= dim; i += lanes)
      hn::StoreU(hn::MulAdd(hn::LoadU(d, its + i), factors, hn::LoadU(d, to + i)), d, to + i);
    for (; i < dim; ++i) to[i] = std::fma(its[i], factor, to[i]);
  }
  for (std::int64_t i = 0; i < dim; ++i) to[i] /= sum;
}

void MergeRows(const MergePartsCall& call, std::int64_t first_row, std::int64_t count) {
  for (std::int64_t row = first_row; row < first_row + count; ++row) {
    for (std::int64_t head = 0; head < call.heads; ++head) {
      const float* const from = call.outputs.data + row * call.outputs.row_stride + head * call.outputs.head_stride;
      MergeHead(call, from, head, call.output.data + row * call.output.row_stride + head * call.output.head_stride);
    }
  }
}

}  // namespace accord::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace accord::kernels {

HWY_EXPORT(MergeRows);

void merge_parts(const MergePartsCall& call, std::int64_t first_row, std::int64_t count) {
  HWY_DYNAMIC_DISPATCH(MergeRows)(call, first_row, count);
}

}  // namespace accord::kernels
#endif
