#pragma once
// y = activation(x * weights^T + bias) and what goes with it, with packed weights.
//
// The bits of a result depend on its row of x, its row of weights, the format, the arithmetic and the instruction set alone:
// not on the other rows, not on how panels and rows are shared among threads, nor on which outputs a rank has. (How `in` is
// cut into blocks does count where a block is no whole number of groups.) Sums are fp32, input by input in ascending order.

#include <cstddef>
#include <cstdint>
#include <span>

#include "accord/status.hpp"
#include "kernels/activation.hpp"
#include "kernels/linear/format.hpp"
#include "kernels/linear/rows.hpp"

namespace accord::kernels {

/// y = activation(x * weights^T + bias) + residual; with a gate, of the same format and sizes,
/// y = activation(x * gate^T + gate_bias) * (x * weights^T + bias) + residual.
struct ProductCall {
  const PackedMatrix* weights = nullptr;
  const PackedMatrix* gate = nullptr;  ///< or none
  const RowsLayout* layout = nullptr;  ///< one that fits the weights
  const std::byte* x = nullptr;        ///< rows prepared by prepare_rows
  const float* bias = nullptr;         ///< [out], or none
  const float* gate_bias = nullptr;    ///< [out], or none
  Activation activation = Activation::kNone;
  ConstRows residual;  ///< [rows, out]; none if it has no data
  Rows y;              ///< [rows, out], rounded once; may be the residual, overlaps nothing else that is read
};

/// The part of a product that one thread computes: panels [first_panel, last_panel) of rows [first_row, last_row).
struct ProductShare {
  std::int64_t first_panel = 0, last_panel = 0;
  std::int64_t first_row = 0, last_row = 0;
};
/// All of it.
ProductShare whole(const ProductCall& call);

/// Bytes of scratch that a thread needs for a share.
constexpr std::size_t kProductScratch = 155648;

/// Computes a share on the calling thread. Allocates nothing, locks nothing. `scratch` of kProductScratch bytes at a
/// multiple of 64, one for each thread. kInvalidArgument if sizes do not fit.
/// Cost: 2 * rows * in * out operations, or the weights of the share read once from memory, whichever is longer.
Status product(const ProductCall& call, const ProductShare& share, std::span<std::byte> scratch);

}  // namespace accord::kernels
