#pragma once
// Matrix products on GPUs for engines with canonical ranks (LoadOptions::canonical_ranks).

#include "engine/program/preparation.hpp"

namespace accord::engine {

/// y [groups, m, n] = x [groups, m, k] * weight [groups, n, k]^T. x and weight may have any strides; y has no gaps.
struct CanonicalProduct {
  Tensor x, weight, y;
};

/// Adds the step, computed by the kernels of mixtures of experts: each group counts as an expert. The bits of an
/// output depend only on its row of x, its row of the weight, and m. The device's library does not guarantee that:
/// for other sizes, strides or addresses it picks another kernel, which sums in another order. Copies x and the
/// weight if they have gaps that the kernels do not support. Fails with kUnsupported if their dtypes differ.
Status add_canonical_product(Preparation& op, CanonicalProduct product);

/// Same for one group, computed as partial products of `pieces` equal pieces of the inputs, which are added as a
/// balanced binary tree. REQUIRES: y is float32, and `pieces` is a power of two that divides k. Cost: one product;
/// each level of the tree reads and writes y once for each of its pieces.
Status add_canonical_pieces(Preparation& op, const CanonicalProduct& product, std::int64_t pieces);

}  // namespace accord::engine
