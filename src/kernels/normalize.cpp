// Every kernel walks its rows one by one: a row (a few KB) stays in the first cache between its passes. Sums run in four
// independent vectors, which hides the latency of addition and keeps each partial sum short. A remainder of a row is loaded
// into a whole vector whose other lanes are neutral.

#include "kernels/normalize.hpp"

#include <cmath>
#include <cstddef>

#include "kernels/simd_targets.hpp"

// Highway's files must come in this order.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/normalize.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
#include "kernels/math_simd.hpp"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace accord::kernels::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using Floats = hn::ScalableTag<float>;
using Vector = hn::Vec<Floats>;

// Sum of term(x[i]) over a row; term of the fill must be 0.
template <class Term>
HWY_INLINE float SumOfRow(const float* x, std::size_t width, float fill, Term term) {
  const Floats d;
  const std::size_t lanes = hn::Lanes(d);
  auto s0 = hn::Zero(d), s1 = s0, s2 = s0, s3 = s0;
  std::size_t i = 0;
  for (; i + 4 * lanes <= width; i += 4 * lanes) {
    s0 = hn::Add(s0, term(hn::LoadU(d, x + i)));
    s1 = hn::Add(s1, term(hn::LoadU(d, x + i + lanes)));
    s2 = hn::Add(s2, term(hn::LoadU(d, x + i + 2 * lanes)));
    s3 = hn::Add(s3, term(hn::LoadU(d, x + i + 3 * lanes)));
  }
  for (; i + lanes <= width; i += lanes) s0 = hn::Add(s0, term(hn::LoadU(d, x + i)));
  if (i < width) s1 = hn::Add(s1, term(LoadPart(d, x + i, width - i, fill)));
  return hn::GetLane(hn::SumOfLanes(d, hn::Add(hn::Add(s0, s1), hn::Add(s2, s3))));
}

// y[i] = map(vector at i, loader of other rows at i).
template <class Map>
HWY_INLINE void MapRow(const float* x, float* y, std::size_t width, Map map) {
  const Floats d;
  const std::size_t lanes = hn::Lanes(d);
  std::size_t i = 0;
  for (; i + lanes <= width; i += lanes) {
    const auto at = [&](const float* row) HWY_ATTR { return hn::LoadU(d, row + i); };
    hn::StoreU(map(at(x), at), d, y + i);
  }
  if (i < width) {
    const auto at = [&](const float* row) HWY_ATTR { return LoadPart(d, row + i, width - i, 0.0F); };
    StorePart(d, map(at(x), at), y + i, width - i);
  }
}

HWY_INLINE float SumOfSquares(const float* x, std::size_t width) {
  return SumOfRow(x, width, 0.0F, [](Vector v) HWY_ATTR { return hn::Mul(v, v); });
}

// The row to normalize: x itself, or x + residual, written where the caller wants it or else to y.
HWY_INLINE const float* RowWithResidual(const RowsCall& rows, const NormParameters& parameters, std::int64_t row) {
  const float* const x = rows.x + row * rows.x_row_stride;
  if (parameters.residual == nullptr && parameters.sum == nullptr) return x;
  float* const to =
      parameters.sum != nullptr ? parameters.sum + row * parameters.sum_row_stride : rows.y + row * rows.y_row_stride;
  const std::size_t width = static_cast<std::size_t>(rows.width);
  if (parameters.residual == nullptr) {
    MapRow(x, to, width, [](Vector v, auto) HWY_ATTR { return v; });
  } else {
    const float* const residual = parameters.residual + row * parameters.residual_row_stride;
    MapRow(x, to, width, [&](Vector v, auto at) HWY_ATTR { return hn::Add(v, at(residual)); });
  }
  return to;
}

void LayerNorm(const RowsCall& rows, const NormParameters& parameters) {
  const Floats d;
  const std::size_t width = static_cast<std::size_t>(rows.width);
  const float* const weight = parameters.weight;
  const float* const bias = parameters.bias;
  for (std::int64_t row = 0; row < rows.rows; ++row) {
    const float* const s = RowWithResidual(rows, parameters, row);
    const float mean = SumOfRow(s, width, 0.0F, [](Vector v) HWY_ATTR { return v; }) / static_cast<float>(width);
    const auto m = hn::Set(d, mean);
    const float squares = SumOfRow(s, width, mean, [&](Vector v) HWY_ATTR {
      const auto difference = hn::Sub(v, m);
      return hn::Mul(difference, difference);
    });
    const auto factor = hn::Set(d, 1.0F / std::sqrt(squares / static_cast<float>(width) + parameters.eps));
    MapRow(s, rows.y + row * rows.y_row_stride, width, [&](Vector v, auto at) HWY_ATTR {
      auto y = hn::Mul(hn::Sub(v, m), factor);
      if (weight != nullptr) y = hn::Mul(y, at(weight));
      return bias != nullptr ? hn::Add(y, at(bias)) : y;
    });
  }
}

void RmsNorm(const RowsCall& rows, const NormParameters& parameters) {
  const Floats d;
  const std::size_t width = static_cast<std::size_t>(rows.width);
  const float* const weight = parameters.weight;
  for (std::int64_t row = 0; row < rows.rows; ++row) {
    const float* const s = RowWithResidual(rows, parameters, row);
    const float mean = SumOfSquares(s, width) / static_cast<float>(width);
    const auto factor = hn::Set(d, 1.0F / std::sqrt(mean + parameters.eps));
    MapRow(s, rows.y + row * rows.y_row_stride, width, [&](Vector v, auto at) HWY_ATTR {
      const auto y = hn::Mul(v, factor);
      return weight != nullptr ? hn::Mul(y, at(weight)) : y;
    });
  }
}

void Softmax(const RowsCall& rows) {
  const Floats d;
  const std::size_t width = static_cast<std::size_t>(rows.width);
  for (std::int64_t row = 0; row < rows.rows; ++row) {
    const float* const x = rows.x + row * rows.x_row_stride;
    float* const y = rows.y + row * rows.y_row_stride;
    const auto factor = hn::Set(d, 1.0F / ExpOfRow(d, x, y, width, MaxOfRow(d, x, width)));
    MapRow(y, y, width, [&](Vector v, auto) HWY_ATTR { return hn::Mul(v, factor); });
  }
}

void LogSoftmax(const RowsCall& rows) {
  const Floats d;
  const std::size_t width = static_cast<std::size_t>(rows.width);
  for (std::int64_t row = 0; row < rows.rows; ++row) {
    const float* const x = rows.x + row * rows.x_row_stride;
    const float max = MaxOfRow(d, x, width);
    const auto m = hn::Set(d, max);
    const float sum =
        SumOfRow(x, width, -HUGE_VALF, [&](Vector v) HWY_ATTR { return ExpNonPositive(d, hn::Sub(v, m)); });
    const auto log_of_sum = hn::Set(d, std::log(sum));
    MapRow(x, rows.y + row * rows.y_row_stride, width,
           [&](Vector v, auto) HWY_ATTR { return hn::Sub(hn::Sub(v, m), log_of_sum); });
  }
}

}  // namespace accord::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace accord::kernels {

HWY_EXPORT(LayerNorm);
HWY_EXPORT(RmsNorm);
HWY_EXPORT(Softmax);
HWY_EXPORT(LogSoftmax);

void layer_norm(const RowsCall& rows, const NormParameters& parameters) {
  HWY_DYNAMIC_DISPATCH(LayerNorm)(rows, parameters);
}
void rms_norm(const RowsCall& rows, const NormParameters& parameters) {
  HWY_DYNAMIC_DISPATCH(RmsNorm)(rows, parameters);
}
void softmax(const RowsCall& rows) { HWY_DYNAMIC_DISPATCH(Softmax)(rows); }
void log_softmax(const RowsCall& rows) { HWY_DYNAMIC_DISPATCH(LogSoftmax)(rows); }

}  // namespace accord::kernels
#endif
