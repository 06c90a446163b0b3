// The sum is computed one block of columns at a time, so that the pending sums stay in the L1 cache. VectorPair rows
// that are added to each other are added as they are read. Other rows are added to a pending sum, and the last addition
// writes y. The last columns, fewer than a unit of two vectors, are copied to buffers in which a whole unit can be
// read and written.

#include "kernels/row_tree.hpp"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "kernels/simd_targets.hpp"
#include "kernels/small_floats.hpp"

// Highway's files must come in this order.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/row_tree.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
#include "kernels/half_simd.hpp"
#include "kernels/wide_simd.hpp"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace accord::kernels::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

template <class Format, class DF>
HWY_INLINE hn::Vec<DF> LoadByteFloats(DF d, const void* from) {
  const hn::Rebind<std::uint8_t, DF> bytes;
  return MinifloatToFloat<Format>(d, hn::PromoteTo(hn::RebindToUnsigned<DF>(), LoadAnywhere(bytes, from)));
}
template <class DF>
HWY_INLINE hn::Vec<DF> LoadWide(DF d, const Float8E4M3FN* from) {
  return LoadByteFloats<E4M3FN>(d, from);
}
template <class DF>
HWY_INLINE hn::Vec<DF> LoadWide(DF d, const Float8E5M2* from) {
  return LoadByteFloats<E5M2>(d, from);
}
template <class DF>
HWY_INLINE hn::Vec<DF> LoadWide(DF d, const double* from) {
  return hn::LoadU(d, from);
}
template <class DF>
HWY_INLINE void StoreNarrow(DF d, hn::Vec<DF> v, double* to) {
  hn::StoreU(v, d, to);
}

// Writes `count` sums as elements of type Y.
template <typename Y>
void NarrowSums(const float* sums, void* y, std::size_t count) {
  const hn::ScalableTag<float> d;
  Y* const to = static_cast<Y*>(y);
  std::size_t i = 0;
  for (; i + hn::Lanes(d) <= count; i += hn::Lanes(d)) StoreNarrow(d, hn::LoadU(d, sums + i), to + i);
  if (i == count) return;
  HWY_ALIGN float last[hn::MaxLanes(d)] = {};
  HWY_ALIGN Y last_y[hn::MaxLanes(d)];
  std::memcpy(last, sums + i, (count - i) * sizeof(float));
  StoreNarrow(d, hn::Load(d, last), last_y);
  std::memcpy(to + i, last_y, (count - i) * sizeof(Y));
}
using NarrowKernel = void (*)(const float* sums, void* y, std::size_t count);

// Adds elements of type T in accumulators of type Sum, two vectors at a time, and writes a row of type Y. If `narrow`
// is set, a block of sums is completed before it is converted to elements of `y_bytes` bytes; this serves pairs of
// types that do not justify a loop of their own. With kEvenOdd, the first vector holds the even elements and the
// second the odd ones, a split that is cheaper for bfloat16; it requires that all rows are bfloat16.
template <typename Sum, typename T, typename Y, bool kEvenOdd>
class RowTree {
 public:
  explicit RowTree(const TreeSum& call) : call_(call) {}
  RowTree(const TreeSum& call, NarrowKernel narrow, std::size_t y_bytes)
      : call_(call), narrow_(narrow), y_bytes_(y_bytes) {}

  HWY_INLINE void run() {
    constexpr std::size_t kStep = sizeof(T) == 1 ? kScaleBlock : kBlock;
    const std::size_t whole_units = call_.width / unit() * unit();
    for (std::size_t first = 0; first < whole_units; first += kStep)
      sum_block(first, std::min(kStep, whole_units - first));
    if (whole_units < call_.width) sum_block(whole_units, call_.width - whole_units);
  }

 private:
  using D = hn::ScalableTag<Sum>;
  using V = hn::Vec<D>;
  static constexpr std::size_t kBlock = 512;
  static constexpr std::size_t kMaxUnit = 2 * hn::MaxLanes(D());

  /// Elements in two vectors.
  static HWY_INLINE std::size_t unit() { return 2 * hn::Lanes(D()); }

  struct VectorPair {
    HWY_INLINE VectorPair() {}  // see Group in reduce/loops_simd.hpp
    HWY_INLINE VectorPair(V a, V b) : first(a), second(b) {}
    V first, second;
  };
  static HWY_INLINE VectorPair add(VectorPair a, VectorPair b) {
    return {hn::Add(a.first, b.first), hn::Add(a.second, b.second)};
  }
  static HWY_INLINE VectorPair multiply(VectorPair a, V factor) {
    return {hn::Mul(a.first, factor), hn::Mul(a.second, factor)};
  }
  static HWY_INLINE VectorPair sums_at(const Sum* from) {
    return {hn::LoadU(D(), from), hn::LoadU(D(), from + hn::Lanes(D()))};
  }

  // The contribution of one row to a block.
  struct Operand {
    const T* elements;
    const Sum* partials;  // or null
    V scale, weight;
    bool scaled, weighted;

    HWY_INLINE VectorPair at(std::size_t i) const {
      const D d;
      if (partials != nullptr) return sums_at(partials + i);
      VectorPair pair;
      if constexpr (kEvenOdd) {
        pair = {LoadHalf<0>(d, elements + i), LoadHalf<1>(d, elements + i)};
      } else {
        pair = {LoadWide(d, elements + i), LoadWide(d, elements + i + hn::Lanes(d))};
      }
      if constexpr (sizeof(T) == 1) {
        if (scaled) pair = multiply(pair, scale);
      }
      return weighted ? multiply(pair, weight) : pair;
    }
  };

  HWY_INLINE Operand operand_of(const TreeRow& row, std::size_t first, std::size_t count) {
    if (row.data == nullptr) __builtin_unreachable();  // tells clang's analyzer that data is not null
    const D d;
    const bool scaled = sizeof(T) == 1 && row.scales != nullptr;
    Operand operand{.elements = static_cast<const T*>(row.data) + first,
                    .partials = nullptr,
                    .scale = hn::Set(d, scaled ? static_cast<Sum>(row.scales[first / kScaleBlock]) : Sum{1}),
                    .weight = hn::Set(d, static_cast<Sum>(row.weight)),
                    .scaled = scaled,
                    .weighted = call_.weighted};
    if (row.is_partial) operand.partials = static_cast<const Sum*>(row.data) + first;
    if (count >= unit()) return operand;
    if (row.is_partial) {
      std::memcpy(last_partials_, operand.partials, count * sizeof(Sum));
      operand.partials = last_partials_;
    } else {
      std::memcpy(last_elements_, operand.elements, count * sizeof(T));
      operand.elements = last_elements_;
    }
    return operand;
  }

  // Stores of(i) for the whole block in `to`, a buffer of sums.
  template <class Of>
  HWY_INLINE void store_sums(Sum* to, std::size_t count, Of of) {
    for (std::size_t i = 0; i < count; i += unit()) {
      const VectorPair pair = of(i);
      hn::StoreU(pair.first, D(), to + i);
      hn::StoreU(pair.second, D(), to + i + hn::Lanes(D()));
    }
  }
  static HWY_INLINE void store(VectorPair pair, Y* y) {
    if constexpr (kEvenOdd) {
      StoreHalves(D(), pair.first, pair.second, y);
    } else {
      StoreNarrow(D(), pair.first, y);
      StoreNarrow(D(), pair.second, y + hn::Lanes(D()));
    }
  }
  template <class Of>
  HWY_INLINE void finish(std::size_t first, std::size_t count, Of of) {
    if constexpr (std::is_same_v<Y, float>) {
      if (const NarrowKernel narrow = narrow_; narrow != nullptr) {
        store_sums(complete_, count, of);
        return narrow(complete_, static_cast<std::byte*>(call_.y) + first * y_bytes_, count);
      }
    }
    Y* const y = static_cast<Y*>(call_.y) + first;
    if (count >= unit()) {
      for (std::size_t i = 0; i < count; i += unit()) store(of(i), y + i);
    } else {
      store(of(0), last_y_);
      std::memcpy(y, last_y_, count * sizeof(Y));
    }
  }

  // Merges the values of `of` with the topmost pending sums, `merges` times. The final result goes to y; any other
  // result becomes a pending sum.
  template <class Of>
  HWY_INLINE void merge(std::size_t first, std::size_t count, int merges, bool is_last, Of of) {
    if (merges == 0) {
      if (is_last) return finish(first, count, of);
      return store_sums(pending_[depth_++], count, of);
    }
    Sum* left = pending_[depth_ - 1];
    const auto added = [&](std::size_t i) HWY_ATTR { return add(sums_at(left + i), of(i)); };
    if (is_last && merges == 1) return finish(first, count, added);
    store_sums(left, count, added);
    for (; merges > 1; --merges) {
      const Sum* const right = pending_[--depth_];
      left = pending_[depth_ - 1];
      const auto merged = [&](std::size_t i) HWY_ATTR { return add(sums_at(left + i), sums_at(right + i)); };
      if (is_last && merges == 2) return finish(first, count, merged);
      store_sums(left, count, merged);
    }
  }

  // Sums the columns from `first` on: whole units of them, or fewer than one unit, for which only one row can be read
  // at a time.
  HWY_INLINE void sum_block(std::size_t first, std::size_t count) {
    depth_ = 0;
    const std::size_t rows = call_.rows.size();
    for (std::size_t r = 0; r < rows; ++r) {
      const Operand operand = operand_of(call_.rows[r], first, count);
      const int merges = call_.rows[r].merges;
      const auto one_row = [&](std::size_t i) HWY_ATTR { return operand.at(i); };
      if (count < unit() || merges > 0 || r + 1 == rows || call_.rows[r + 1].merges == 0) {
        merge(first, count, merges, r + 1 == rows, one_row);
        continue;
      }
      // VectorPair rows that are added to each other are read together.
      const Operand next = operand_of(call_.rows[++r], first, count);
      const auto two_rows = [&](std::size_t i) HWY_ATTR { return add(operand.at(i), next.at(i)); };
      merge(first, count, call_.rows[r].merges - 1, r + 1 == rows, two_rows);
    }
  }

  const TreeSum& call_;
  const NarrowKernel narrow_ = nullptr;
  const std::size_t y_bytes_ = sizeof(Y);
  int depth_ = 0;  // number of pending sums
  HWY_ALIGN Sum pending_[kTreeDepth][kBlock];
  HWY_ALIGN Sum complete_[kBlock];
  HWY_ALIGN Sum last_partials_[kMaxUnit];
  HWY_ALIGN T last_elements_[kMaxUnit];
  HWY_ALIGN Y last_y_[kMaxUnit];
};

template <typename T>
void SumRows(const TreeSum& call) {
  RowTree<T, T, T, false>(call).run();
}

template <typename T, typename Y>
void SumRowsTo(const TreeSum& call) {
  if constexpr (std::is_same_v<T, BFloat16> && std::is_same_v<Y, BFloat16> && HWY_TARGET != HWY_SCALAR) {
    const auto is_partial = [](const TreeRow& row) { return row.is_partial; };
    if (std::none_of(call.rows.begin(), call.rows.end(), is_partial)) return RowTree<float, T, Y, true>(call).run();
  }
  if constexpr (std::is_same_v<Y, float>) {
    RowTree<float, T, float, false>(call).run();
  } else {
    RowTree<float, T, float, false>(call, NarrowSums<Y>, sizeof(Y)).run();
  }
}

using SumRowsKernel = void (*)(const TreeSum&);

template <typename T>
SumRowsKernel SelectTo(DType y) {
  switch (y) {
    case DType::kFloat32: return SumRowsTo<T, float>;
    case DType::kBFloat16: return SumRowsTo<T, BFloat16>;
    case DType::kFloat16: return SumRowsTo<T, Float16>;
    default: return nullptr;
  }
}

SumRowsKernel SelectSumRows(DType dtype, DType y) {
  switch (dtype) {
    case DType::kFloat64: return y == DType::kFloat64 ? SumRows<double> : nullptr;
    case DType::kFloat32: return SelectTo<float>(y);
    case DType::kBFloat16: return SelectTo<BFloat16>(y);
    case DType::kFloat16: return SelectTo<Float16>(y);
    case DType::kFloat8E4M3FN: return SelectTo<Float8E4M3FN>(y);
    case DType::kFloat8E5M2: return SelectTo<Float8E5M2>(y);
    default: return nullptr;
  }
}

}  // namespace accord::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace accord::kernels {

HWY_EXPORT(SelectSumRows);

bool can_sum_rows(DType dtype, DType y_dtype) { return HWY_DYNAMIC_DISPATCH(SelectSumRows)(dtype, y_dtype) != nullptr; }

void sum_rows(const TreeSum& sum) {
  if (sum.rows.empty()) {
    std::memset(sum.y, 0, sum.width * size_of(sum.y_dtype));
    return;
  }
  HWY_DYNAMIC_DISPATCH(SelectSumRows)(sum.dtype, sum.y_dtype)(sum);
}

}  // namespace accord::kernels
#endif
