#pragma once
// Attention of a block of threads: some queries over a range of tokens, a piece of tokens at a time, with a softmax that is corrected as larger
// scores come (Milakov, Gimelshein 2018; Dao et al. 2022). Everything is float32 in the block's shared memory.

#include <cmath>

#include "engine/device/operands.hpp"

namespace accord::engine {

/// Tokens whose keys and values are in shared memory at a time.
inline constexpr int kPieceTokens = 16;

/// How much a block computes.
struct AttendSizes {
  int queries = 0;  ///< at most
  int head_dim = 0, value_dim = 0;
};

/// Where in shared memory things are; rows of keys are one float longer, so that threads of a warp read from different banks.
struct AttendMemory {
  float *q, *k, *v, *scores, *sums, *most, *totals, *corrections;
  ACCORD_ON_DEVICE AttendMemory(std::byte* shared, const AttendSizes& sizes) {
    q = reinterpret_cast<float*>(shared);
    k = q + sizes.queries * sizes.head_dim;
    v = k + kPieceTokens * (sizes.head_dim + 1);
    scores = v + kPieceTokens * sizes.value_dim;
    sums = scores + sizes.queries * kPieceTokens;
    most = sums + sizes.queries * sizes.value_dim;
    totals = most + sizes.queries;
    corrections = totals + sizes.queries;
  }
};
constexpr std::size_t attend_bytes(const AttendSizes& sizes) {
  const int floats = sizes.queries * (sizes.head_dim + sizes.value_dim + kPieceTokens + 3) +
                     kPieceTokens * (sizes.head_dim + 1 + sizes.value_dim);
  return static_cast<std::size_t>(floats) * sizeof(float);
}

/// Tile has, of one block's work:
///   queries()                       how many, at most sizes.queries
///   first_token(), last_token()     the range that any of them may see
///   query(q, d), key(t, d), value(t, d)    elements
///   score(q, t, product)            of query and key: scaled, -infinity if the query does not see the token
///   take(block, memory)             the results: sums[q][d] / totals[q], and most[q]
/// All threads call it.
template <typename Block, typename Tile>
ACCORD_ON_DEVICE void attend(Block& block, const AttendSizes& sizes, const Tile& tile) {
  const AttendMemory at(block.shared(), sizes);
  const int queries = tile.queries(), head_dim = sizes.head_dim, value_dim = sizes.value_dim;
  const int me = block.thread(), threads = block.threads();
  block.sync();  // what was before may still be read
  for (int i = me; i < queries * head_dim; i += threads) at.q[i] = tile.query(i / head_dim, i % head_dim);
  for (int i = me; i < queries * value_dim; i += threads) at.sums[i] = 0.0F;
  for (int q = me; q < queries; q += threads) {
    at.most[q] = -INFINITY;
    at.totals[q] = 0.0F;
  }
  for (std::int64_t first = tile.first_token(); first < tile.last_token(); first += kPieceTokens) {
    const std::int64_t left = tile.last_token() - first;
    const int tokens = left < kPieceTokens ? static_cast<int>(left) : kPieceTokens;
    block.sync();
    for (int i = me; i < tokens * head_dim; i += threads)
      at.k[i / head_dim * (head_dim + 1) + i % head_dim] = tile.key(first + i / head_dim, i % head_dim);
    for (int i = me; i < tokens * value_dim; i += threads) at.v[i] = tile.value(first + i / value_dim, i % value_dim);
    block.sync();
    for (int i = me; i < queries * kPieceTokens; i += threads) {
      const int q = i / kPieceTokens, t = i % kPieceTokens;
      float product = 0.0F;
      if (t < tokens) {
        for (int d = 0; d < head_dim; ++d) product += at.q[q * head_dim + d] * at.k[t * (head_dim + 1) + d];
      }
      at.scores[i] = t < tokens ? tile.score(q, first + t, product) : -INFINITY;
    }
    block.sync();
    for (int q = me; q < queries; q += threads) {
      float* const scores = at.scores + q * kPieceTokens;
      float most = at.most[q];
      for (int t = 0; t < tokens; ++t) most = scores[t] > most || scores[t] != scores[t] ? scores[t] : most;
      const float correction = most == -INFINITY ? 1.0F : expf(at.most[q] - most);
      float total = at.totals[q] * correction;
      for (int t = 0; t < tokens; ++t) {
        scores[t] = most == -INFINITY ? 0.0F : expf(scores[t] - most);
        total += scores[t];
      }
      at.most[q] = most;
      at.totals[q] = total;
      at.corrections[q] = correction;
    }
    block.sync();
    for (int i = me; i < queries * value_dim; i += threads) {
      const int q = i / value_dim, d = i % value_dim;
      float sum = at.sums[i] * at.corrections[q];
      for (int t = 0; t < tokens; ++t) sum += at.scores[q * kPieceTokens + t] * at.v[t * value_dim + d];
      at.sums[i] = sum;
    }
  }
  block.sync();
  tile.take(block, at);
}

}  // namespace accord::engine
