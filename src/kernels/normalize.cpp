// Every kernel processes its rows one by one: a row (a few KB) stays in the L1 cache between passes. Sums use four
// independent vectors, which hides the latency of addition and keeps each partial sum short. The remainder of a row
// is loaded into a whole vector whose other lanes are neutral.

#include "kernels/normalize.hpp"

#include <cmath>
#include <cstddef>
#include <cstring>

#include "kernels/simd_targets.hpp"

// Highway's files must come in this order.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/normalize.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
#include "kernels/half_simd.hpp"
#include "kernels/math_simd.hpp"
#include "kernels/wide_simd.hpp"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace accord::kernels::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using Floats = hn::ScalableTag<float>;
using Vector = hn::Vec<Floats>;

// Loads and stores `count` < Lanes(d) elements. The other lanes are `fill`, and their memory is not touched.
template <typename T>
HWY_INLINE Vector LoadWidePart(Floats d, const T* from, std::size_t count, float fill) {
  HWY_ALIGN T lanes[hn::MaxLanes(Floats())] = {};
  std::memcpy(lanes, from, count * sizeof(T));
  return hn::IfThenElse(hn::FirstN(d, count), LoadWide(d, lanes), hn::Set(d, fill));
}
template <typename T>
HWY_INLINE void StoreNarrowPart(Floats d, Vector v, T* to, std::size_t count) {
  HWY_ALIGN T lanes[hn::MaxLanes(Floats())];
  StoreNarrow(d, v, lanes);
  std::memcpy(to, lanes, count * sizeof(T));
}

// Four independent sums.
struct Sums {
  Vector sums[4];
  HWY_INLINE explicit Sums(Floats d) : sums{hn::Zero(d), hn::Zero(d), hn::Zero(d), hn::Zero(d)} {}
  HWY_INLINE void add(int at, Vector v) { sums[at] = hn::Add(sums[at], v); }
  HWY_INLINE float total(Floats d) const {
    return hn::GetLane(hn::SumOfLanes(d, hn::Add(hn::Add(sums[0], sums[1]), hn::Add(sums[2], sums[3]))));
  }
};

// Sums term(x[i]) over a row. REQUIRES: term(fill) is 0.
template <typename T, class Term>
HWY_INLINE float SumOfRow(const T* x, std::size_t width, float fill, Term term) {
  const Floats d;
  const std::size_t lanes = hn::Lanes(d);
  Sums sums(d);
  std::size_t i = 0;
  for (; i + 4 * lanes <= width; i += 4 * lanes) {
    sums.add(0, term(LoadHalf<0>(d, x + i)));
    sums.add(1, term(LoadHalf<1>(d, x + i)));
    sums.add(2, term(LoadHalf<0>(d, x + i + 2 * lanes)));
    sums.add(3, term(LoadHalf<1>(d, x + i + 2 * lanes)));
  }
  for (; i + lanes <= width; i += lanes) sums.add(0, term(LoadWide(d, x + i)));
  if (i < width) sums.add(1, term(LoadWidePart(d, x + i, width - i, fill)));
  return sums.total(d);
}

// Writes y[i] = map(vector at i, loader of other rows at i) and returns the sum of term(y[i]). The lanes past the row
// do not count.
template <typename T, class Map, class Term>
HWY_INLINE float MapAndSumRow(const T* x, T* y, std::size_t width, Map map, Term term) {
  const Floats d;
  const std::size_t lanes = hn::Lanes(d);
  Sums sums(d);
  const auto map_two = [&](std::size_t i, int at) HWY_ATTR {
    const auto first_of = [&](const T* row) HWY_ATTR { return LoadHalf<0>(d, row + i); };
    const auto second_of = [&](const T* row) HWY_ATTR { return LoadHalf<1>(d, row + i); };
    auto first = map(first_of(x), first_of);
    auto second = map(second_of(x), second_of);
    StoreHalves(d, first, second, y + i);
    sums.add(at, term(first));
    sums.add(at + 1, term(second));
  };
  std::size_t i = 0;
  for (; i + 4 * lanes <= width; i += 4 * lanes) {
    map_two(i, 0);
    map_two(i + 2 * lanes, 2);
  }
  for (; i + lanes <= width; i += lanes) {
    const auto at = [&](const T* row) HWY_ATTR { return LoadWide(d, row + i); };
    const auto v = map(at(x), at);
    StoreNarrow(d, v, y + i);
    sums.add(0, term(Rounded(d, v, y)));
  }
  if (i < width) {
    const auto at = [&](const T* row) HWY_ATTR { return LoadWidePart(d, row + i, width - i, 0.0F); };
    const auto v = map(at(x), at);
    StoreNarrowPart(d, v, y + i, width - i);
    sums.add(1, hn::IfThenElseZero(hn::FirstN(d, width - i), term(Rounded(d, v, y))));
  }
  return sums.total(d);
}

template <typename T, class Map>
HWY_INLINE void MapRow(const T* x, T* y, std::size_t width, Map map) {
  MapAndSumRow(x, y, width, map, [](Vector) HWY_ATTR { return hn::Zero(Floats()); });
}

// The row to normalize, and the sum of term() over its elements.
template <typename T>
struct SummedRow {
  const T* row = nullptr;
  float sum = 0.0F;
};

// Returns that row: x itself, or x + addend + residual, written to the caller's `sum` if there is one and to y
// otherwise.
template <typename T, class Term>
HWY_INLINE SummedRow<T> RowWithResidual(const RowsOf<T>& rows, const NormParametersOf<T>& parameters, std::int64_t row,
                                        Term term) {
  const T* const x = rows.x + row * rows.x_row_stride;
  const T* const addend = parameters.addend;
  const std::size_t width = static_cast<std::size_t>(rows.width);
  if (addend == nullptr && parameters.residual == nullptr && parameters.sum == nullptr) {
    return {x, SumOfRow(x, width, 0.0F, term)};
  }
  T* const to =
      parameters.sum != nullptr ? parameters.sum + row * parameters.sum_row_stride : rows.y + row * rows.y_row_stride;
  const Floats d;
  const auto map_to = [&](auto map) HWY_ATTR -> SummedRow<T> { return {to, MapAndSumRow(x, to, width, map, term)}; };
  if (parameters.residual == nullptr) {
    return map_to([&](Vector v, auto at) HWY_ATTR { return addend == nullptr ? v : hn::Add(v, at(addend)); });
  }
  const T* const residual = parameters.residual + row * parameters.residual_row_stride;
  if (addend == nullptr) return map_to([&](Vector v, auto at) HWY_ATTR { return hn::Add(v, at(residual)); });
  return map_to([&](Vector v, auto at)
                    HWY_ATTR { return hn::Add(Rounded(d, hn::Add(v, at(addend)), x), at(residual)); });
}

template <typename T>
HWY_INLINE void LayerNormOf(const RowsOf<T>& rows, const NormParametersOf<T>& parameters) {
  const Floats d;
  const std::size_t width = static_cast<std::size_t>(rows.width);
  const T* const weight = parameters.weight;
  const T* const bias = parameters.bias;
  for (std::int64_t row = 0; row < rows.rows; ++row) {
    const auto [s, sum] = RowWithResidual(rows, parameters, row, [](Vector v) HWY_ATTR { return v; });
    const float mean = sum / static_cast<float>(width);
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

template <typename T>
HWY_INLINE void RmsNormOf(const RowsOf<T>& rows, const NormParametersOf<T>& parameters) {
  const Floats d;
  const std::size_t width = static_cast<std::size_t>(rows.width);
  const T* const weight = parameters.weight;
  for (std::int64_t row = 0; row < rows.rows; ++row) {
    const auto [s, squares] = RowWithResidual(rows, parameters, row, [](Vector v) HWY_ATTR { return hn::Mul(v, v); });
    const float mean = squares / static_cast<float>(width);
    const auto factor = hn::Set(d, 1.0F / std::sqrt(mean + parameters.eps));
    MapRow(s, rows.y + row * rows.y_row_stride, width, [&](Vector v, auto at) HWY_ATTR {
      const auto y = hn::Mul(v, factor);
      return weight != nullptr ? hn::Mul(y, at(weight)) : y;
    });
  }
}

// Run-time dispatch needs functions, not templates.
void LayerNorm(const RowsCall& rows, const NormParameters& parameters) { LayerNormOf(rows, parameters); }
void LayerNormFloat16(const RowsOf<Float16>& rows, const NormParametersOf<Float16>& parameters) {
  LayerNormOf(rows, parameters);
}
void LayerNormBFloat16(const RowsOf<BFloat16>& rows, const NormParametersOf<BFloat16>& parameters) {
  LayerNormOf(rows, parameters);
}
void RmsNorm(const RowsCall& rows, const NormParameters& parameters) { RmsNormOf(rows, parameters); }
void RmsNormFloat16(const RowsOf<Float16>& rows, const NormParametersOf<Float16>& parameters) {
  RmsNormOf(rows, parameters);
}
void RmsNormBFloat16(const RowsOf<BFloat16>& rows, const NormParametersOf<BFloat16>& parameters) {
  RmsNormOf(rows, parameters);
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
HWY_EXPORT(LayerNormFloat16);
HWY_EXPORT(LayerNormBFloat16);
HWY_EXPORT(RmsNorm);
HWY_EXPORT(RmsNormFloat16);
HWY_EXPORT(RmsNormBFloat16);
HWY_EXPORT(Softmax);
HWY_EXPORT(LogSoftmax);

template <>
void layer_norm(const RowsCall& rows, const NormParameters& parameters) {
  HWY_DYNAMIC_DISPATCH(LayerNorm)(rows, parameters);
}
template <>
void layer_norm(const RowsOf<Float16>& rows, const NormParametersOf<Float16>& parameters) {
  HWY_DYNAMIC_DISPATCH(LayerNormFloat16)(rows, parameters);
}
template <>
void layer_norm(const RowsOf<BFloat16>& rows, const NormParametersOf<BFloat16>& parameters) {
  HWY_DYNAMIC_DISPATCH(LayerNormBFloat16)(rows, parameters);
}
template <>
void rms_norm(const RowsCall& rows, const NormParameters& parameters) {
  HWY_DYNAMIC_DISPATCH(RmsNorm)(rows, parameters);
}
template <>
void rms_norm(const RowsOf<Float16>& rows, const NormParametersOf<Float16>& parameters) {
  HWY_DYNAMIC_DISPATCH(RmsNormFloat16)(rows, parameters);
}
template <>
void rms_norm(const RowsOf<BFloat16>& rows, const NormParametersOf<BFloat16>& parameters) {
  HWY_DYNAMIC_DISPATCH(RmsNormBFloat16)(rows, parameters);
}
void softmax(const RowsCall& rows) { HWY_DYNAMIC_DISPATCH(Softmax)(rows); }
void log_softmax(const RowsCall& rows) { HWY_DYNAMIC_DISPATCH(LogSoftmax)(rows); }

}  // namespace accord::kernels
#endif
