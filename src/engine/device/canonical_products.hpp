#pragma once
// Matrix products of engines with canonical ranks (LoadOptions::canonical_ranks) on devices.

#include "engine/runtime/preparation.hpp"

namespace accord::engine {

/// y [groups, m, n] = x [groups, m, k] * weight [groups, n, k]^T. Any strides, but y has no gaps.
struct CanonicalProduct {
  Tensor x, weight, y;
};

/// Adds the step, by the kernels of mixtures of experts, for which each group is an expert. An output's bits depend on its row of x, its row of the
/// weight and m alone; the device's library takes another kernel, which sums in another order, where sizes, strides or addresses are others. x and the
/// weight are copied if they have gaps that the kernels do not know. kUnsupported if they are of different dtypes.
Status add_canonical_product(Preparation& op, CanonicalProduct product);

/// The same for one group, made of partial products of `pieces` equal pieces of the inputs, which are added as a balanced binary tree: as
/// packed_product.hpp has it for the CPU. kUnsupported unless y is float32 and `pieces`, a power of two, divides k. Cost: one product, and each level
/// of the tree reads and writes y as often as it has pieces.
Status add_canonical_pieces(Preparation& op, const CanonicalProduct& product, std::int64_t pieces);

}  // namespace accord::engine
