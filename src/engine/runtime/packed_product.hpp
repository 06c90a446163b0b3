#pragma once
// Products with packed weights as a step of a program.

#include <optional>
#include <vector>

#include "engine/runtime/preparation.hpp"
#include "kernels/linear/product.hpp"

namespace accord::engine {

/// y = activation(x * weights^T + bias), or with a gate y = activation(x * gate^T + gate_bias) * (x * weights^T + bias).
struct PackedProduct {
  kernels::PackedMatrix weights;
  std::optional<kernels::PackedMatrix> gate;  ///< of the format, the sizes and the division of the weights
  std::optional<Tensor> bias, gate_bias;      ///< [out] in float32, contiguous
  kernels::Activation activation = kernels::Activation::kNone;
  Tensor y;  ///< [.., out], contiguous, of any real dtype
};

/// Adds the step that computes all of them of the same rows [.., in], which are prepared once: those of bfloat16 are multiplied as
/// they are, others as float32. All threads share the work, and the bits do not depend on how many they are. kUnsupported
/// unless x is made of real numbers. REQUIRES: at least one product, all of one format, `in` and division of it.
Status add_packed_products(Preparation& op, const Tensor& x, const std::vector<PackedProduct>& products);

/// The same of one product, made of partial products of `pieces` equal pieces of the inputs, which are added as a balanced binary
/// tree: the bits that as many ranks with a piece each would give. kUnsupported unless y is float32, there is neither bias nor
/// activation, `pieces` is a power of two and the weights lie in blocks that no piece cuts. Cost: y written once and read twice for
/// each piece besides.
Status add_product_of_pieces(Preparation& op, const Tensor& x, const PackedProduct& product, std::int64_t pieces);

}  // namespace accord::engine
