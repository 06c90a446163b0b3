#pragma once
// Reductions of a tensor over some of its dimensions.

#include <cstdint>
#include <span>
#include <string_view>

#include "kernels/view.hpp"

namespace accord::kernels {

enum class Reduction : std::uint8_t { kSum, kMean, kMax, kMin, kAny };
std::string_view to_string(Reduction reduction);

/// y = reduction of x over `dims` (each in [0, x.layout.dims), without repetition; an empty list means all
/// dimensions). y has x's sizes, with the reduced dimensions either left out or of size 1.
///
/// float32: kSum and kMean (accumulated in double, rounded once), kMax, kMin; NaN propagates. int64 and int32: kSum
/// (wraps), kMax and kMin, with y of the same dtype. bool: kAny with y bool; kSum with y int64. Over no elements,
/// kSum is 0 and kMean is NaN; kMax and kMin fail with kInvalidArgument. Other combinations fail with kUnsupported.
/// Cost: one pass over x.
Status reduce_dims(Reduction reduction, const ConstView& x, std::span<const int> dims, const View& y);

}  // namespace accord::kernels
