#pragma once
// Calls of attention and rotary embedding. All tensors but masks have floats, and their last dimension is contiguous.

#include <optional>

#include "engine/program/preparation.hpp"

namespace accord::engine {

/// output = softmax(scale * q * k^T + mask) * v, for tensors [batch, heads, length, dim]. The heads of k and v divide
/// those of q: h heads of q that follow each other share one of k and v. A query that sees no key gives zeros.
struct AttentionCall {
  Tensor q, k, v;
  std::optional<Tensor> mask;  ///< [batch, heads of q, queries, keys]; numbers that are added, or bools: false hides
  bool is_causal = false;      ///< query i sees keys 0..i only
  float scale = 1.0F;
  Tensor output;
};

/// The factors of a rotary embedding: [1, 1, tokens, dim], where all heads of a token use the same row.
struct RotaryTables {
  Tensor cos, sin;
};

/// Writes the keys and values of the batch's rows to the cache, then computes their attention over the tokens of their
/// sequences. q, k and v are [1, heads, rows, dim].
struct CachedAttentionCall {
  std::int64_t layer = 0;
  Tensor q, k;
  std::optional<Tensor> v;             ///< absent: the value of a token is the first `value_dim` elements of its key
  std::int64_t value_dim = 0;          ///< of values and the output
  std::optional<RotaryTables> rotary;  ///< by which q and k are rotated first (RotaryCall)
  float scale = 1.0F;
  float softcap = 0.0F;          ///< if not 0, a score becomes softcap * tanh(score / softcap)
  std::int64_t window = 0;       ///< a row sees the last `window` tokens, including itself; 0: all
  std::int64_t chunk = 0;        ///< a row sees the tokens of its own `chunk` tokens of the sequence; 0: all
  std::optional<Tensor> sinks;   ///< float32 [heads]: scores of each head that take part in the softmax without a value
  std::optional<Tensor> slopes;  ///< float32 [heads]: added to a score for each token that the key is ahead of the row
  /// float32 [heads, distances]: added to the score of the token that many before the row; the last number also for all
  /// tokens before that.
  std::optional<Tensor> biases;
  Tensor output;  ///< [1, rows, heads, dim]
};

/// Writes the keys and values of a source to the cache, in the blocks of the batch's rows. Both are [1, heads, rows,
/// dim].
struct CacheSourceCall {
  std::int64_t layer = 0;
  Tensor k, v;
  Tensor output;  ///< int64 [1]: the number of rows
};

/// Computes attention of the batch's rows to all rows of the source of their sequence.
struct CrossAttentionCall {
  std::int64_t layer = 0;
  Tensor q;  ///< [1, heads, rows, dim]
  float scale = 1.0F;
  std::int64_t value_dim = 0;
  Tensor output;  ///< [1, rows, heads, value_dim]
};

/// y = x cos + (-second half of x, first half of x) sin, for x and y [1, heads, tokens, dim].
struct RotaryCall {
  Tensor x;
  RotaryTables tables;
  Tensor y;
};
/// Memory for the result of a rotary embedding inside a node: [1, heads, tokens, dim], stored by tokens.
Result<Tensor> rotary_scratch(Preparation& op, const Tensor& x);

/// Fails with kUnsupported unless `tensor` has floats.
Status require_floats(const Preparation& op, const Tensor& tensor);
/// Returns `tensor` (which has dimensions), or a copy of it, with its last dimension contiguous. Fails as
/// require_floats() does.
Result<Tensor> heads_of(Preparation& op, const Tensor& tensor);

}  // namespace accord::engine
