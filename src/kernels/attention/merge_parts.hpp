#pragma once
// The last step of attention whose tokens are divided into parts (paged_attention.hpp).

#include <cstdint>

#include "kernels/attention/paged_attention.hpp"

namespace accord::kernels {

/// Outputs of partial calls. That of a head and row: value_dim floats, the largest score, the sum of the weights.
struct MergePartsCall {
  ConstTokenRows outputs = {};   ///< of part 0
  std::int64_t part_stride = 0;  ///< floats from one part's outputs to the next
  std::int64_t parts = 1;
  std::int64_t heads = 0;
  std::int64_t value_dim = 0;
  const float* sinks = nullptr;  ///< [heads], as in PagedAttentionCall; or nullptr
  TokenRows output = {};
};

/// Computes the outputs of attention to all parts, for rows [first_row, first_row + count). The bits of a row depend
/// only on its parts and their order.
void merge_parts(const MergePartsCall& call, std::int64_t first_row, std::int64_t count);

}  // namespace accord::kernels
