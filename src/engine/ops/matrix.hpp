#pragma once
// Calls that multiply matrices.

#include <optional>
#include <vector>

#include "engine/program/packed_stack.hpp"
#include "engine/program/preparation.hpp"
#include "kernels/activation.hpp"
#include "kernels/linear/format.hpp"

namespace accord::engine {

/// A matrix that may be a weight of the package.
struct MatrixWeight {
  Tensor tensor;
  /// The weight as [outputs, inputs], if the CPU has packed it. Then `tensor` has sizes and a dtype, but no elements.
  const kernels::PackedMatrix* packed = nullptr;
};

/// y = activation(x * weight^T + bias), or, with a gate,
/// y = activation(x * gate^T + gate_bias) * (x * weight^T + bias).
struct LinearLayer {
  MatrixWeight weight;                    ///< [out, in]
  std::optional<MatrixWeight> gate;       ///< with the sizes of the weight
  std::optional<Tensor> bias, gate_bias;  ///< [out], of any real dtype
  kernels::Activation activation = kernels::Activation::kNone;
  /// The product is the sum of partial products of so many equal pieces of the inputs, added as a balanced binary
  /// tree: a power of two that divides the inputs. Then y is float32, and there is no gate, bias or activation.
  std::optional<std::int64_t> pieces;
  /// [.., out]. Its rows have no gaps inside. They are columns of a wider tensor if the device multiplies with the
  /// weights of several layers at once; else y is contiguous.
  Tensor y;
};

/// Returns whether `second` begins in memory where `first` ends: matrices of equally wide rows.
bool follows(const Tensor& second, const Tensor& first);

/// Computes layers of the same input [.., in]. If the outputs of several layers are columns of one tensor, their
/// weights follow each other.
struct LinearsCall {
  RowTensor x;
  std::vector<LinearLayer> layers;
};

/// c = alpha * a * b + beta * bias, for [m, k] and [k, n], or for batches of them.
struct MatrixProductCall {
  Tensor a;
  MatrixWeight b;              ///< packed only if it is [k, n]
  std::optional<Tensor> bias;  ///< broadcasts to c; absent if beta is 0, so that NaN * 0 is not added
  double alpha = 1.0, beta = 1.0;
  std::optional<std::int64_t> pieces;  ///< as in LinearLayer
  Tensor c;                            ///< contiguous
};

/// y[.., h, :] = weight[h] * x[.., h, :] for each head h.
struct HeadLinearCall {
  Tensor x;                             ///< [rows, heads, in], with its last dimension contiguous
  Tensor weight;                        ///< [heads, out, in]
  const PackedStack* packed = nullptr;  ///< the weight, if the CPU has packed it; then `weight` has no elements
  Tensor y;                             ///< [rows, heads, out], contiguous
};

}  // namespace accord::engine
