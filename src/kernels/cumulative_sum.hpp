#pragma once
// Cumulative sums along a dimension.

#include "kernels/view.hpp"

namespace accord::kernels {

/// y[.., i, ..] = x[.., 0, ..] + .. + x[.., i, ..] along `dim`. float32 is accumulated in float64 and each element is
/// rounded once, as in PyTorch; int32 and int64 wrap. y has the sizes of x and may be x itself. Fails with
/// kUnsupported for other dtypes. Cost: one pass over x.
Status cumulative_sum(const ConstView& x, int dim, const View& y);

}  // namespace accord::kernels
