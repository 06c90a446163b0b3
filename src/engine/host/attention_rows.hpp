#pragma once
// Addresses of the rows and the scratch of attention, and the pieces into which its work is divided.

#include <algorithm>
#include <span>

#include "engine/host/run.hpp"
#include "engine/ops/attention.hpp"
#include "engine/program/tensor.hpp"
#include "kernels/attention/paged_attention.hpp"

namespace accord::engine::host {

/// Rows of a tensor [1, heads, rows, dim], from `first_row` on.
inline kernels::ConstTokenRows token_rows(const Execution& execution, const Tensor& tensor, std::int64_t first_row) {
  return {execution.data<const float>(tensor) + first_row * tensor.stride(2), tensor.stride(2), tensor.stride(1)};
}

/// Rows of an output [1, rows, heads, dim], from `first_row` on.
inline kernels::TokenRows output_rows(const Execution& execution, const Tensor& tensor, std::int64_t first_row) {
  return {execution.data<float>(tensor) + first_row * tensor.stride(1), tensor.stride(1), tensor.stride(2)};
}

/// Returns memory for `parts` threads, each piece at a multiple of 16 floats.
inline Result<Tensor> scratch_pieces(Preparation& op, int parts, std::size_t floats) {
  return op.scratch(DType::kFloat32, {parts, static_cast<std::int64_t>(floats + 15) / 16 * 16});
}

/// Piece `part` of memory [pieces, floats].
inline std::span<float> scratch_of(const Tensor& pieces, const Execution& execution, int part) {
  return {execution.data<float>(pieces) + part * pieces.size(1), static_cast<std::size_t>(pieces.size(1))};
}

/// Sets the biases of distances, if the call has them.
inline void set_biases(const Execution& execution, const CachedAttentionCall& call,
                       kernels::PagedAttentionCall& kernel) {
  if (!call.biases) return;
  kernel.biases = execution.data<const float>(*call.biases);
  kernel.distances = call.biases->size(1);
}

inline constexpr std::int64_t kRowsOfPiece = 32;

inline std::int64_t pieces_of(const BatchRows& sequence) {
  return (sequence.rows.rows + kRowsOfPiece - 1) / kRowsOfPiece;
}

/// Calls attend(sequence, part, thread) for each piece of each sequence's rows, and each set of the query heads of
/// `sizes`, on the threads of the run. `attend` returns a Status.
template <typename Attend>
Status for_pieces(const Execution& execution, const kernels::PagedAttentionCall& sizes, const Attend& attend) {
  const auto kv_heads = static_cast<int>(sizes.cache.kv_heads), sets = static_cast<int>(kernels::head_sets(sizes));
  std::int64_t pieces = 0;
  for (const BatchRows& sequence : execution.batch) pieces += pieces_of(sequence);
  return pool_of(execution).run(static_cast<int>(pieces) * kv_heads * sets, [&](int part, int thread) {
    std::int64_t piece = part / (kv_heads * sets);
    std::size_t at = 0;
    while (piece >= pieces_of(execution.batch[at])) piece -= pieces_of(execution.batch[at++]);
    const BatchRows& sequence = execution.batch[at];
    kernels::PagedAttentionPart share{part / sets % kv_heads, part % sets, piece * kRowsOfPiece};
    share.rows = std::min(kRowsOfPiece, sequence.rows.rows - share.first_row);
    return attend(sequence, share, thread);
  });
}

}  // namespace accord::engine::host
