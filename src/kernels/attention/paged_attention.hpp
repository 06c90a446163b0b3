#pragma once
// Attention of rows of one sequence over its keys and values in a paged cache.

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/attention/paged_cache.hpp"

namespace accord::kernels {

/// Like ConstTokenRows, but writable.
struct TokenRows {
  float* data = nullptr;
  std::int64_t row_stride = 0, head_stride = 0;
};

/// Each block of a sequence is divided into `parts` runs of `tokens` tokens; a call attends to one run of each block.
/// The blocks of the cache hold the runs from `first` on. One part: all tokens.
struct TokenPart {
  std::int64_t parts = 1;
  std::int64_t part = 0;    ///< the one that the call attends to
  std::int64_t first = 0;   ///< the one that blocks of the cache begin with
  std::int64_t tokens = 0;  ///< a multiple of 16; unused with one part
};

struct PagedAttentionCall {
  PagedCache cache = {};
  std::int64_t heads = 0;  ///< of q and output; a multiple of cache.kv_heads
  float scale = 1.0F;
  float softcap = 0.0F;     ///< if not 0, a score becomes softcap * tanh(score / softcap)
  std::int64_t window = 0;  ///< a row attends to the last `window` tokens, including itself; 0: all
  std::int64_t chunk = 0;   ///< a row attends to the tokens of its own `chunk` tokens of the sequence; 0: all
  /// [heads]: for each query head, a score that takes part in the softmax without a value; or nullptr.
  const float* sinks = nullptr;
  /// [heads]: for each query head, what is added to the score of a key for each token that it is ahead of the query (a
  /// negative number: ALiBi, Press et al. 2022); or nullptr.
  const float* slopes = nullptr;
  /// [heads, distances]: for each query head, what is added to the score of the token that many before the query; the
  /// last number also for all tokens before that. nullptr: nothing.
  const float* biases = nullptr;
  std::int64_t distances = 0;
  /// Every row attends to the first `tokens_of_all` tokens, wherever it is itself; 0: to the tokens up to its own.
  std::int64_t tokens_of_all = 0;
  ConstTokenRows q = {};
  TokenRows output = {};
  TokenPart part = {};
  /// Leaves out the division by the sum of the weights, and writes the largest score and that sum after each row of a
  /// head of the output, which has value_dim + 2 floats. Without sinks.
  bool is_partial = false;
};

/// Floats of scratch per thread.
std::size_t paged_attention_scratch(const PagedAttentionCall& call);

/// Part of a call: rows [first_row, first_row + rows) and one of the sets of query heads that share key head `kv_head`.
struct PagedAttentionPart {
  std::int64_t kv_head = 0, head_set = 0;
  std::int64_t first_row = 0, rows = 0;
};
/// Number of sets into which the query heads of a key head are divided.
std::int64_t head_sets(const PagedAttentionCall& call);

/// output = softmax(scale q k^T) v for one part of the sequence's `rows`.
/// Runs on the calling thread. The bits of a row depend only on its own query and the tokens it attends to: not on the
/// rows beside it, the block size, or the width of the instruction set (provided it has fused multiply-adds). REQUIRES:
/// as append_to_cache; the keys and values of these rows are in the cache. Cost: 2 * tokens * (head_dim + value_dim)
/// operations for each row and query head. Keys and values are read once per eight queries.
void paged_attention(const PagedAttentionCall& call, const SequenceRows& rows, const PagedAttentionPart& part,
                     std::span<float> scratch);

}  // namespace accord::kernels
