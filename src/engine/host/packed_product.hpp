#pragma once
// Products with packed weights as a step of a program.

#include <optional>
#include <vector>

#include "engine/program/preparation.hpp"
#include "kernels/linear/product.hpp"

namespace accord::engine::host {

/// y = activation(x * weights^T + bias), or with a gate
/// y = activation(x * gate^T + gate_bias) * (x * weights^T + bias).
struct PackedProduct {
  kernels::PackedMatrix weights;
  std::optional<kernels::PackedMatrix> gate;  ///< with the format, sizes and division of the weights
  std::optional<Tensor> bias, gate_bias;      ///< [out] in float32, contiguous
  kernels::Activation activation = kernels::Activation::kNone;
  Tensor y;  ///< [.., out], contiguous, of any real dtype
};

/// Adds the step that computes all products of the same rows [.., in]. The rows are prepared once: bfloat16 rows are
/// multiplied as they are, others as float32. All threads share the work, and the bits do not depend on the number of
/// threads. REQUIRES: at least one product; all have the same format, the same `in` and the same division of it.
Status add_packed_products(Preparation& op, const RowTensor& x, const std::vector<PackedProduct>& products);

/// Adds the same for one product, computed as partial products of `pieces` equal pieces of the inputs that are added
/// as a balanced binary tree (LinearLayer::pieces). The result has the bits that as many ranks with one piece each
/// would give. Fails with kUnsupported if a piece cuts a block of the weights. Extra cost: y is written once and read
/// twice for each piece.
Status add_product_of_pieces(Preparation& op, const RowTensor& x, const PackedProduct& product, std::int64_t pieces);

}  // namespace accord::engine::host
