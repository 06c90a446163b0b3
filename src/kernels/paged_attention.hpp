#pragma once
// Attention of rows of one sequence over its keys and values, which lie in a paged cache.

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/paged_cache.hpp"

namespace accord::kernels {

/// As ConstTokenRows, to be written.
struct TokenRows {
  float* data = nullptr;
  std::int64_t row_stride = 0, head_stride = 0;
};

struct PagedAttentionCall {
  PagedCache cache = {};
  std::int64_t heads = 0;  ///< of q and output; a multiple of cache.kv_heads
  float scale = 1.0F;
  float softcap = 0.0F;     ///< c: scores become c tanh(score / c); 0: they stay
  std::int64_t window = 0;  ///< a row sees the last `window` tokens, itself included; 0: all
  ConstTokenRows q = {};
  TokenRows output = {};
};

/// Floats of scratch for one thread.
std::size_t paged_attention_scratch(const PagedAttentionCall& call);

/// output = softmax(scale q k^T) v for rows [first_row, first_row + count) of `rows` and the query heads that share key head
/// `kv_head`: a row sees the tokens up to its own. Runs on the calling thread. The bits of a row depend on its own
/// query and the tokens that it sees, and on nothing else: not on the rows beside it, nor on the block size, nor on the
/// width of the instruction set where that has fused multiply-adds.
/// REQUIRES: as append_to_cache; the keys and values of these rows are in the cache.
/// Cost: 2 * count * (heads / kv_heads) * tokens * (head_dim + value_dim) operations; keys and values are read once for eight
/// queries.
void paged_attention(const PagedAttentionCall& call, const SequenceRows& rows, std::int64_t kv_head,
                     std::int64_t first_row, std::int64_t count, std::span<float> scratch);

}  // namespace accord::kernels
