#pragma once
// Running sums along a dimension.

#include "kernels/view.hpp"

namespace accord::kernels {

/// y[.., i, ..] = x[.., 0, ..] + .. + x[.., i, ..] along `dim`. float32 is added in float64 and each place rounded
/// once, as PyTorch does; int32 and int64 wrap. y has x's sizes and may be x. kUnsupported names other dtypes. Cost:
/// one pass over x.
Status cumulative_sum(const ConstView& x, int dim, const View& y);

}  // namespace accord::kernels
