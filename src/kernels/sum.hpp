#pragma once
// Reductions of a tensor over some of its dimensions.

#include <cstdint>
#include <span>
#include <string_view>

#include "kernels/view.hpp"

namespace accord::kernels {

enum class Reduction : std::uint8_t { kSum, kMean, kMax, kMin, kAny };
std::string_view to_string(Reduction reduction);

/// y = reduction of x over `dims` (each in [0, x.layout.dims), no repetition; none given means over all of them). y has x's
/// sizes with the reduced dimensions either left out or of size 1.
///
/// float32: kSum, kMean (accumulated in double, rounded once), kMax, kMin; NaN goes through. int64 and int32:
/// kSum (wraps), kMax, kMin, with y of the same dtype. bool: kAny, y bool; kSum, y int64. kSum of nothing is 0, kMean
/// NaN; kMax and kMin of nothing are kInvalidArgument. kUnsupported names other combinations.
/// Cost: one pass over x.
Status reduce_dims(Reduction reduction, const ConstView& x, std::span<const int> dims, const View& y);

}  // namespace accord::kernels
