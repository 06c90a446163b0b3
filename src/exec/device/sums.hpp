#pragma once
// Sums over sources, several elements at a time: what reductions of words and of mixed operands share.

#include "exec/device/elements.hpp"
#include "exec/device/several.hpp"

namespace accord::exec {

template <typename Element, int kCount>
using SumsOf = Several<typename Element::Sum, kCount>;

/// Combines each pair of elements.
template <typename Element, ReduceOp kOp, int kCount>
ACCORD_ON_DEVICE SumsOf<Element, kCount> combine_by(SumsOf<Element, kCount> a, const SumsOf<Element, kCount>& b) {
  for (int i = 0; i < kCount; ++i) a.x[i] = Element::combine(kOp, a.x[i], b.x[i]);
  return a;
}

/// The same for an op that is known at run time, which is looked at once for all elements. kAvg adds.
template <typename Element, int kCount>
ACCORD_ON_DEVICE SumsOf<Element, kCount> combine(ReduceOp op, const SumsOf<Element, kCount>& a,
                                                 const SumsOf<Element, kCount>& b) {
  using Sum = typename Element::Sum;
  if (op == ReduceOp::kProduct) return combine_by<Element, ReduceOp::kProduct>(a, b);
  if constexpr (std::is_arithmetic_v<Sum>) {
    if (op == ReduceOp::kMin) return combine_by<Element, ReduceOp::kMin>(a, b);
    if (op == ReduceOp::kMax) return combine_by<Element, ReduceOp::kMax>(a, b);
  }
  if constexpr (std::is_integral_v<Sum>) {
    if (op == ReduceOp::kBand) return combine_by<Element, ReduceOp::kBand>(a, b);
    if (op == ReduceOp::kBor) return combine_by<Element, ReduceOp::kBor>(a, b);
    if (op == ReduceOp::kBxor) return combine_by<Element, ReduceOp::kBxor>(a, b);
  }
  return combine_by<Element, ReduceOp::kSum>(a, b);
}

/// The canonical tree over those of kSlots sources from kFirst on that are below `count`, at least one: the perfect
/// tree without the others. `leaf(i)` returns the sums of source i, `combine(a, b)` those of two.
template <int kFirst, int kSlots, typename Leaf, typename Combine>
ACCORD_ON_DEVICE auto tree_of(int count, const Leaf& leaf, const Combine& combine) {
  if constexpr (kSlots == 1) {
    return leaf(kFirst);
  } else {
    constexpr int kHalf = kSlots / 2;
    auto sums = tree_of<kFirst, kHalf>(count, leaf, combine);
    if (kFirst + kHalf < count) sums = combine(sums, tree_of<kFirst + kHalf, kHalf>(count, leaf, combine));
    return sums;
  }
}

/// Sums become averages over `sources`.
template <typename Element, int kCount>
ACCORD_ON_DEVICE void divide(SumsOf<Element, kCount>& sums, int sources) {
  for (int i = 0; i < kCount; ++i) sums.x[i] = Element::divide(sums.x[i], sources);
}

}  // namespace accord::exec
