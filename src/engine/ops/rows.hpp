#pragma once
// Calls that reduce, scan or sort along dimensions.

#include <vector>

#include "engine/program/tensor.hpp"
#include "kernels/sum.hpp"
#include "kernels/top_k.hpp"

namespace accord::engine {

/// Writes the softmax, or its logarithm, of each row of x to y, which has no gaps.
struct SoftmaxCall {
  bool is_logarithm = false;
  Tensor x;
  Rows rows;  ///< of x
  Tensor y;
};

/// Reduces x over `dims` (all dimensions if empty) into y, which is contiguous and keeps the other dimensions, and
/// may have ones in place of the reduced ones.
struct ReduceCall {
  kernels::Reduction kind = {};
  Tensor x;
  std::vector<int> dims;
  Tensor y;
};

/// Each element of y is the sum of the elements of x up to it along `dim`.
struct CumulativeSumCall {
  Tensor x;
  int dim = 0;
  Tensor y;
};

/// kernels::TopKCall with tensors: rows in, values and indices without gaps out.
struct TopKCall {
  kernels::Extreme extreme = kernels::Extreme::kLargest;
  Tensor x;
  Rows rows;
  std::int64_t k = 0;
  Tensor values, indices;
};

}  // namespace accord::engine
