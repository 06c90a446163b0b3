#pragma once
// Calls that compute element by element. Inputs are broadcast to y; unless noted, they have the dtype in which the
// call computes. y may be one of the inputs.

#include "engine/program/tensor.hpp"
#include "kernels/elementwise/elementwise.hpp"

namespace accord::engine {

/// y = kind(x).
struct UnaryCall {
  kernels::UnaryOp kind = {};
  Tensor x, y;
};

/// y = a kind b. Integers may be divided by zero: the run then fails and names the node.
struct BinaryCall {
  kernels::BinaryOp kind = {};
  Tensor a, b, y;
};
struct BinaryScalarCall {
  kernels::BinaryOp kind = {};
  Tensor a;
  kernels::Scalar b;
  Tensor y;
};

/// y = x ^ exponent, for floats.
struct PowerCall {
  Tensor x;
  double exponent = 1.0;
  Tensor y;
};

/// y = min(max(x, low), high).
struct ClampCall {
  Tensor x;
  kernels::Scalar low, high;
  Tensor y;
};

/// y = condition ? a : b. `condition` is bool.
struct WhereCall {
  Tensor condition, a, b, y;
};

/// y = value everywhere.
struct FillCall {
  kernels::Scalar value;
  Tensor y;
};

/// y[i] = first + i * step, for a y of one dimension.
struct CountCall {
  kernels::Scalar first, step;
  Tensor y;
};

}  // namespace accord::engine
