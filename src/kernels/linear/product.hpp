#pragma once
// y = activation(x * weights^T + bias) and its variants with a gate or a residual, for packed weights.
//
// The bits of a result depend only on its row of x, its row of weights, the format, the arithmetic and the
// instruction set. They do not depend on the other rows, on how panels and rows are divided among threads, or on
// which outputs a rank has. (The split of `in` into blocks does matter if a block is not a whole number of groups.)
// Sums are fp32, input by input in ascending order.

#include <cstddef>
#include <cstdint>
#include <span>

#include "accord/status.hpp"
#include "kernels/activation.hpp"
#include "kernels/linear/format.hpp"
#include "kernels/linear/rows.hpp"

namespace accord::kernels {

/// y = activation(x * weights^T + bias) + residual. With a gate, which has the same format and sizes,
/// y = activation(x * gate^T + gate_bias) * (x * weights^T + bias) + residual.
struct ProductCall {
  const PackedMatrix* weights = nullptr;
  const PackedMatrix* gate = nullptr;  ///< or null
  const RowsLayout* layout = nullptr;  ///< must fit the weights
  const std::byte* x = nullptr;        ///< rows prepared by prepare_rows
  const float* bias = nullptr;         ///< [out], or null
  const float* gate_bias = nullptr;    ///< [out], or null
  Activation activation = Activation::kNone;
  ConstRows residual;  ///< [rows, out]; without data, no residual is added
  Rows y;              ///< [rows, out], rounded once; may be the residual, must not overlap any other input
};

/// The part of a product that one thread computes: panels [first_panel, last_panel) of rows [first_row, last_row).
struct ProductShare {
  std::int64_t first_panel = 0, last_panel = 0;
  std::int64_t first_row = 0, last_row = 0;
};
/// Returns the share that covers the whole product.
ProductShare full_share(const ProductCall& call);

/// Bytes of scratch that a thread needs for a share.
constexpr std::size_t kProductScratch = 155648;

/// Computes a share on the calling thread. Allocates nothing, locks nothing. `scratch` has kProductScratch bytes,
/// aligned to 64 bytes, and must not be shared between threads. Fails with kInvalidArgument if sizes do not fit.
/// Cost: 2 * rows * in * out operations, or reading the share's weights once from memory, whichever takes longer.
Status product(const ProductCall& call, const ProductShare& share, std::span<std::byte> scratch);

}  // namespace accord::kernels
