// The dimensions of x are divided into kept and reduced ones; each set is walked as a RowLoop. There are two ways to
// proceed:
//   by rows, if the reduced elements are contiguous: one accumulator per kept element runs over them;
//   by columns, if the kept elements are contiguous: a block of accumulators on the stack runs over the reduced rows.
// Either way memory is read in order. Sums of float32 accumulate in double, sums of integers in 64 bits. The loops
// are plain and vectorized per target.

#include "kernels/sum.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <type_traits>

#include "kernels/elementwise/row_loop.hpp"
#include "kernels/simd_targets.hpp"

// Highway's files must come in this order.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/sum.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
// clang-format on

#ifndef ACCORD_KERNELS_SUM_PLAN
#define ACCORD_KERNELS_SUM_PLAN
namespace accord::kernels {

// `kept` has operands x and y; `reduced` has operand x.
struct ReductionPlan {
  RowLoop<2> kept;
  RowLoop<1> reduced;
  std::int64_t reduced_count = 0;
  const void* x = nullptr;
  void* y = nullptr;
};
using ReductionKernel = void (*)(const ReductionPlan& plan);

}  // namespace accord::kernels
#endif

HWY_BEFORE_NAMESPACE();
namespace accord::kernels::HWY_NAMESPACE {

template <typename T>
struct SumOf {
  using In = T;
  using Out = T;
  using Accumulator = std::conditional_t<std::is_same_v<T, float>, double, std::uint64_t>;
  static constexpr Accumulator kStart = 0;
  static Accumulator Step(Accumulator a, T x) { return a + static_cast<Accumulator>(x); }
  static Accumulator Merge(Accumulator a, Accumulator b) { return a + b; }
  static Out Finish(Accumulator a, std::int64_t) { return static_cast<Out>(a); }
};
struct MeanOf : SumOf<float> {
  static float Finish(double a, std::int64_t n) { return static_cast<float>(a / static_cast<double>(n)); }
};
struct CountOf : SumOf<std::uint8_t> {
  using Out = std::int64_t;
  static Out Finish(Accumulator a, std::int64_t) { return static_cast<Out>(a); }
};
template <typename T>
constexpr T kLowest = std::is_floating_point_v<T> ? -std::numeric_limits<T>::infinity() : std::numeric_limits<T>::min();
template <typename T>
constexpr T kHighest = std::is_floating_point_v<T> ? std::numeric_limits<T>::infinity() : std::numeric_limits<T>::max();

template <typename T>
struct MaxOf {
  using In = T;
  using Out = T;
  using Accumulator = T;
  static constexpr T kStart = kLowest<T>;
  static T Step(T a, T x) { return x > a || x != x ? x : a; }  // NaN wins and stays
  static T Merge(T a, T b) { return Step(a, b); }
  static T Finish(T a, std::int64_t) { return a; }
};
template <typename T>
struct MinOf : MaxOf<T> {
  static constexpr T kStart = kHighest<T>;
  static T Step(T a, T x) { return x < a || x != x ? x : a; }
  static T Merge(T a, T b) { return Step(a, b); }
};
struct AnyOf : MaxOf<std::uint8_t> {};

template <class Rule>
typename Rule::Accumulator ReduceRow(const typename Rule::In* x, std::int64_t stride, std::int64_t count) {
  using Accumulator = typename Rule::Accumulator;
  constexpr std::int64_t kParts = 16;
  Accumulator parts[kParts];
  std::fill(parts, parts + kParts, Rule::kStart);
  std::int64_t i = 0;
  if (stride == 1) {
    for (; i + kParts <= count; i += kParts) {
      for (std::int64_t k = 0; k < kParts; ++k) parts[k] = Rule::Step(parts[k], x[i + k]);
    }
  }
  for (; i < count; ++i) parts[i % kParts] = Rule::Step(parts[i % kParts], x[i * stride]);
  for (std::int64_t half = kParts / 2; half > 0; half /= 2) {
    for (std::int64_t k = 0; k < half; ++k) parts[k] = Rule::Merge(parts[k], parts[k + half]);
  }
  return parts[0];
}

template <class Rule>
void ReduceByRows(const ReductionPlan& plan) {
  const auto* const x = static_cast<const typename Rule::In*>(plan.x);
  auto* const y = static_cast<typename Rule::Out*>(plan.y);
  plan.kept.for_each_row([&](const std::array<std::int64_t, 2>& kept) {
    for (std::int64_t i = 0; i < plan.kept.row_size(); ++i) {
      auto total = Rule::kStart;
      plan.reduced.for_each_row([&](const std::array<std::int64_t, 1>& reduced) {
        const auto* const row = x + kept[0] + i * plan.kept.row_stride(0) + reduced[0];
        total = Rule::Merge(total, ReduceRow<Rule>(row, plan.reduced.row_stride(0), plan.reduced.row_size()));
        return true;
      });
      y[kept[1] + i * plan.kept.row_stride(1)] = Rule::Finish(total, plan.reduced_count);
    }
    return true;
  });
}

template <class Rule>
void ReduceByColumns(const ReductionPlan& plan) {
  constexpr std::int64_t kBlock = 512;
  typename Rule::Accumulator totals[kBlock];
  const auto* const x = static_cast<const typename Rule::In*>(plan.x);
  auto* const y = static_cast<typename Rule::Out*>(plan.y);
  plan.kept.for_each_row([&](const std::array<std::int64_t, 2>& kept) {
    for (std::int64_t first = 0; first < plan.kept.row_size(); first += kBlock) {
      const std::int64_t count = std::min(kBlock, plan.kept.row_size() - first);
      std::fill(totals, totals + count, Rule::kStart);
      plan.reduced.for_each_row([&](const std::array<std::int64_t, 1>& reduced) {
        const auto* row = x + kept[0] + first + reduced[0];
        for (std::int64_t k = 0; k < plan.reduced.row_size(); ++k, row += plan.reduced.row_stride(0)) {
          for (std::int64_t i = 0; i < count; ++i) totals[i] = Rule::Step(totals[i], row[i]);
        }
        return true;
      });
      for (std::int64_t i = 0; i < count; ++i) {
        y[kept[1] + (first + i) * plan.kept.row_stride(1)] = Rule::Finish(totals[i], plan.reduced_count);
      }
    }
    return true;
  });
}

template <class Rule>
void ReduceDims(const ReductionPlan& plan) {
  const bool rows_are_scattered = plan.reduced.row_size() > 1 && plan.reduced.row_stride(0) != 1;
  if (plan.kept.row_stride(0) == 1 && plan.kept.row_size() > 1 && rows_are_scattered) {
    ReduceByColumns<Rule>(plan);
  } else {
    ReduceByRows<Rule>(plan);
  }
}

template <typename T>
ReductionKernel SelectExtreme(Reduction reduction) {
  if (reduction == Reduction::kMax) return ReduceDims<MaxOf<T>>;
  if (reduction == Reduction::kMin) return ReduceDims<MinOf<T>>;
  return reduction == Reduction::kSum ? ReduceDims<SumOf<T>> : nullptr;
}

ReductionKernel SelectReduction(Reduction reduction, DType input, DType output) {
  if (input == DType::kBool && reduction == Reduction::kSum) {
    return output == DType::kInt64 ? ReduceDims<CountOf> : nullptr;
  }
  if (input != output) return nullptr;
  switch (input) {
    case DType::kFloat32: return reduction == Reduction::kMean ? ReduceDims<MeanOf> : SelectExtreme<float>(reduction);
    case DType::kInt32: return SelectExtreme<std::int32_t>(reduction);
    case DType::kInt64: return SelectExtreme<std::int64_t>(reduction);
    case DType::kBool: return reduction == Reduction::kAny ? ReduceDims<AnyOf> : nullptr;
    default: return nullptr;
  }
  return nullptr;
}

}  // namespace accord::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace accord::kernels {

HWY_EXPORT(SelectReduction);

namespace {

// Appends a dimension to a layout.
void append(Layout& to, std::int64_t size, std::int64_t stride) {
  to.sizes[to.dims] = size;
  to.strides[to.dims++] = stride;
}

}  // namespace

std::string_view to_string(Reduction reduction) {
  switch (reduction) {
    case Reduction::kSum: return "sum";
    case Reduction::kMean: return "mean";
    case Reduction::kMax: return "max";
    case Reduction::kMin: return "min";
    case Reduction::kAny: return "any";
  }
  return "unknown";
}

Status reduce_dims(Reduction reduction, const ConstView& x, std::span<const int> dims, const View& y) {
  const ReductionKernel kernel = HWY_DYNAMIC_DISPATCH(SelectReduction)(reduction, x.dtype, y.dtype);
  if (kernel == nullptr) {
    return {StatusCode::kUnsupported, fmt::format("{} over dimensions: no kernel from {} to {}", to_string(reduction),
                                                  accord::to_string(x.dtype), accord::to_string(y.dtype))};
  }
  std::array<bool, kMaxDims> is_reduced{};
  for (const int dim : dims) {
    if (dim < 0 || dim >= x.layout.dims || is_reduced[dim]) {
      return {StatusCode::kInvalidArgument,
              fmt::format("{}: dimension {} of a tensor with {} dimensions does not exist or appears twice",
                          to_string(reduction), dim, x.layout.dims)};
    }
    is_reduced[dim] = true;
  }
  if (dims.empty()) is_reduced.fill(true);

  Layout kept_x, kept_y, reduced_x;
  const bool keeps_dims = y.layout.dims == x.layout.dims;  // if true, reduced dimensions stay with size 1
  int y_dim = 0;
  bool fits = true;
  for (int i = 0; i < x.layout.dims; ++i) {
    if (!is_reduced[i] || keeps_dims) {
      fits = fits && y_dim < y.layout.dims && y.layout.sizes[y_dim] == (is_reduced[i] ? 1 : x.layout.sizes[i]);
    }
    if (is_reduced[i]) {
      append(reduced_x, x.layout.sizes[i], x.layout.strides[i]);
      y_dim += keeps_dims ? 1 : 0;
    } else {
      append(kept_x, x.layout.sizes[i], x.layout.strides[i]);
      append(kept_y, x.layout.sizes[i], fits ? y.layout.strides[y_dim] : 0);
      ++y_dim;
    }
  }
  if (!fits || y_dim != y.layout.dims) {
    return {StatusCode::kInvalidArgument,
            fmt::format("{} over dimensions: the output's sizes must be those of the kept dimensions",
                        to_string(reduction))};
  }
  const std::int64_t reduced_count = reduced_x.count();
  if (reduced_count == 0 && (reduction == Reduction::kMax || reduction == Reduction::kMin)) {
    return {StatusCode::kInvalidArgument, fmt::format("{} over no elements is undefined", to_string(reduction))};
  }
  kernel({RowLoop<2>({&kept_x, &kept_y}), RowLoop<1>({&reduced_x}), reduced_count, x.data, y.data});
  return {};
}

}  // namespace accord::kernels
#endif
