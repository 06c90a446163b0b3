// A block of columns at a time, so that the sums that wait lie in the first cache. A row that is followed by a merge is added where it is
// read, and the last addition writes y, so that most trees touch the waiting sums once for two rows. The last columns, less than a
// vector, are copied to where a whole one may be read and written.

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

// Elements of type T, added as Sum, to a row of type Y.
template <typename Sum, typename T, typename Y>
class RowTree {
 public:
  explicit RowTree(const TreeSum& call) : call_(call) {}

  HWY_INLINE void run() {
    constexpr std::size_t kStep = std::min(kBlock, kScaleBlock);
    const std::size_t whole = call_.width / hn::Lanes(D()) * hn::Lanes(D());
    for (std::size_t first = 0; first < whole; first += kStep) sum_block(first, std::min(kStep, whole - first));
    if (whole < call_.width) sum_block(whole, call_.width - whole);
  }

 private:
  using D = hn::ScalableTag<Sum>;
  using V = hn::Vec<D>;
  static constexpr std::size_t kBlock = 128;

  // What one row adds to a block.
  struct Operand {
    const T* elements;
    const Sum* partials;  // or null
    V scale, weight;
    bool scaled, weighted;

    HWY_INLINE V at(std::size_t i) const {
      const D d;
      if (partials != nullptr) return hn::LoadU(d, partials + i);
      V v = LoadWide(d, elements + i);
      if constexpr (sizeof(T) == 1) {
        if (scaled) v = hn::Mul(v, scale);
      }
      return weighted ? hn::Mul(v, weight) : v;
    }
  };

  HWY_INLINE Operand operand_of(const TreeRow& row, std::size_t first, std::size_t count) {
    const D d;
    const bool scaled = sizeof(T) == 1 && row.scales != nullptr;
    Operand operand{.elements = static_cast<const T*>(row.data) + first,
                    .partials = nullptr,
                    .scale = hn::Set(d, scaled ? static_cast<Sum>(row.scales[first / kScaleBlock]) : Sum{1}),
                    .weight = hn::Set(d, static_cast<Sum>(row.weight)),
                    .scaled = scaled,
                    .weighted = call_.weighted};
    if (row.is_partial) operand.partials = static_cast<const Sum*>(row.data) + first;
    if (count >= hn::Lanes(d)) return operand;
    if (row.is_partial) {
      std::memcpy(last_partials_, operand.partials, count * sizeof(Sum));
      operand.partials = last_partials_;
    } else {
      std::memcpy(last_elements_, operand.elements, count * sizeof(T));
      operand.elements = last_elements_;
    }
    return operand;
  }

  // store(i, of(i)) for each vector of the block.
  template <class Of>
  HWY_INLINE void keep(Sum* to, std::size_t count, Of of) {
    for (std::size_t i = 0; i < count; i += hn::Lanes(D())) hn::StoreU(of(i), D(), to + i);
  }
  template <class Of>
  HWY_INLINE void finish(std::size_t first, std::size_t count, Of of) {
    Y* const y = static_cast<Y*>(call_.y) + first;
    if (count >= hn::Lanes(D())) {
      for (std::size_t i = 0; i < count; i += hn::Lanes(D())) StoreNarrow(D(), of(i), y + i);
    } else {
      StoreNarrow(D(), of(0), last_y_);
      std::memcpy(y, last_y_, count * sizeof(Y));
    }
  }

  // Columns from `first` on: whole vectors of them, or less than one.
  HWY_INLINE void sum_block(std::size_t first, std::size_t count) {
    const D d;
    int depth = 0;
    for (std::size_t r = 0; r < call_.rows.size(); ++r) {
      const TreeRow& row = call_.rows[r];
      const Operand operand = operand_of(row, first, count);
      const bool is_last = r + 1 == call_.rows.size();
      const auto alone = [&](std::size_t i) HWY_ATTR { return operand.at(i); };
      if (row.merges == 0) {
        if (is_last) return finish(first, count, alone);
        keep(waiting_[depth++], count, alone);
        continue;
      }
      Sum* left = waiting_[depth - 1];
      const auto added = [&](std::size_t i) HWY_ATTR { return hn::Add(hn::LoadU(d, left + i), operand.at(i)); };
      if (is_last && row.merges == 1) return finish(first, count, added);
      keep(left, count, added);
      for (int merge = 1; merge < row.merges; ++merge) {
        const Sum* const right = waiting_[--depth];
        left = waiting_[depth - 1];
        const auto merged = [&](std::size_t i)
                                HWY_ATTR { return hn::Add(hn::LoadU(d, left + i), hn::LoadU(d, right + i)); };
        if (is_last && merge + 1 == row.merges) return finish(first, count, merged);
        keep(left, count, merged);
      }
    }
  }

  const TreeSum& call_;
  HWY_ALIGN Sum waiting_[kTreeDepth][kBlock];
  HWY_ALIGN Sum last_partials_[hn::MaxLanes(D())];
  HWY_ALIGN T last_elements_[hn::MaxLanes(D())];
  HWY_ALIGN Y last_y_[hn::MaxLanes(D())];
};

template <typename Sum, typename T, typename Y>
void SumRows(const TreeSum& call) {
  RowTree<Sum, T, Y>(call).run();
}

using SumRowsKernel = void (*)(const TreeSum&);

template <typename T>
SumRowsKernel SelectTo(DType y) {
  switch (y) {
    case DType::kFloat32: return SumRows<float, T, float>;
    case DType::kBFloat16: return SumRows<float, T, BFloat16>;
    case DType::kFloat16: return SumRows<float, T, Float16>;
    default: return nullptr;
  }
}

SumRowsKernel SelectSumRows(DType dtype, DType y) {
  switch (dtype) {
    case DType::kFloat64: return y == DType::kFloat64 ? SumRows<double, double, double> : nullptr;
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
