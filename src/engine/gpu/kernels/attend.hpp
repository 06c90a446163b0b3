#pragma once
// Attention computed by one block of threads: several queries over a range of tokens. The block works through the
// tokens piece by piece, with a softmax that is corrected whenever a larger score appears (Milakov, Gimelshein 2018;
// Dao et al. 2022). Everything is float32 in the block's shared memory.

#include <cmath>

#include "engine/gpu/kernels/operands.hpp"
#include "engine/gpu/kernels/words.hpp"

namespace accord::engine {

/// Tokens whose keys and values are in shared memory at the same time.
inline constexpr int kPieceTokens = 16;

/// The amount of work of one block.
struct AttendSizes {
  int queries = 0;  ///< the maximum
  int head_dim = 0, value_dim = 0;
};

/// The layout of shared memory. Rows of keys are padded by one float, so that the threads of a warp read from
/// different banks.
struct AttendMemory {
  float *q, *k, *v, *scores, *sums, *max_scores, *totals, *corrections;
  ACCORD_ON_DEVICE AttendMemory(std::byte* shared, const AttendSizes& sizes) {
    q = reinterpret_cast<float*>(shared);
    k = q + sizes.queries * sizes.head_dim;
    v = k + kPieceTokens * (sizes.head_dim + 1);
    scores = v + kPieceTokens * sizes.value_dim;
    sums = scores + sizes.queries * kPieceTokens;
    max_scores = sums + sizes.queries * sizes.value_dim;
    totals = max_scores + sizes.queries;
    corrections = totals + sizes.queries;
  }
};
constexpr std::size_t attend_bytes(const AttendSizes& sizes) {
  const int floats = sizes.queries * (sizes.head_dim + sizes.value_dim + kPieceTokens + 3) +
                     kPieceTokens * (sizes.head_dim + 1 + sizes.value_dim);
  return static_cast<std::size_t>(floats) * sizeof(float);
}

/// One head of one token: floats beginning at element `first` of `data`, or int8 codes that are multiplied by
/// `scale`.
struct HeadRow {
  const void* data = nullptr;
  DType dtype = DType::kFloat32;
  std::int64_t first = 0;
  float scale = 1.0F;
};

/// Reads elements [d, d + kElementsAtOnce) of a row of `dim` elements, or as many as remain. Floats are read 16 bytes
/// at a time where they are aligned to 16 bytes.
inline constexpr int kElementsAtOnce = 8;
template <DType kDType>
ACCORD_ON_DEVICE inline void read_words(const Words* from, float* to) {
  ACCORD_UNROLLED
  for (int word = 0; word < kElementsAtOnce / kElementsOfWords<kDType>; ++word) {
    const Words words = from[word];
    ACCORD_UNROLLED
    for (int i = 0; i < kElementsOfWords<kDType>; ++i)
      to[word * kElementsOfWords<kDType> + i] = element_of<kDType>(words, i);
  }
}
ACCORD_ON_DEVICE inline void read_elements(const HeadRow& row, int d, int dim, float* to) {
  if (row.dtype == DType::kInt8) {
    const auto* const codes = static_cast<const std::int8_t*>(row.data) + row.first;
    for (int i = d; i < dim && i < d + kElementsAtOnce; ++i) to[i - d] = static_cast<float>(codes[i]) * row.scale;
    return;
  }
  const auto* const from = reinterpret_cast<const Words*>(static_cast<const std::byte*>(row.data) +
                                                          (row.first + d) * (row.dtype == DType::kFloat32 ? 4 : 2));
  const bool is_in_words = d + kElementsAtOnce <= dim && reinterpret_cast<std::uintptr_t>(from) % sizeof(Words) == 0;
  if (!is_in_words) {
    for (int i = d; i < dim && i < d + kElementsAtOnce; ++i)
      to[i - d] = device::load_float(row.data, row.dtype, row.first + i);
  } else if (row.dtype == DType::kFloat32) {
    read_words<DType::kFloat32>(from, to);
  } else if (row.dtype == DType::kBFloat16) {
    read_words<DType::kBFloat16>(from, to);
  } else {
    read_words<DType::kFloat16>(from, to);
  }
}
/// Copies `count` rows, row_of(i), to memory where rows are `pitch` elements apart.
template <typename Block, typename RowOf>
ACCORD_ON_DEVICE void read_rows(Block& block, int count, int dim, int pitch, float* to, const RowOf& row_of) {
  const int pieces = (dim + kElementsAtOnce - 1) / kElementsAtOnce;
  for (int i = block.thread(); i < count * pieces; i += block.threads()) {
    const int row = i / pieces, d = i % pieces * kElementsAtOnce;
    read_elements(row_of(row), d, dim, to + row * pitch + d);
  }
}

/// Computes attention for the work that `tile` describes. Tile provides, for one block:
///   queries()                       the number of queries, at most sizes.queries
///   first_token(), last_token()     the range of tokens that any of the queries may see
///   query(q), key(t), value(t)      HeadRow
///   score(q, t, product)            the score from the product of query and key: scaled, -infinity if the query does
///                                   not see the token
///   store_results(block, memory)    stores the results: sums[q][d] / totals[q], and the maximum score max_scores[q]
/// All threads of the block must call it.
template <typename Block, typename Tile>
ACCORD_ON_DEVICE void attend(Block& block, const AttendSizes& sizes, const Tile& tile) {
  const AttendMemory at(block.shared(), sizes);
  const int queries = tile.queries(), head_dim = sizes.head_dim, value_dim = sizes.value_dim;
  const int me = block.thread(), threads = block.threads();
  block.sync();  // the previous contents may still be in use
  read_rows(block, queries, head_dim, head_dim, at.q, [&](int q) { return tile.query(q); });
  for (int i = me; i < queries * value_dim; i += threads) at.sums[i] = 0.0F;
  for (int q = me; q < queries; q += threads) {
    at.max_scores[q] = -INFINITY;
    at.totals[q] = 0.0F;
  }
  for (std::int64_t first = tile.first_token(); first < tile.last_token(); first += kPieceTokens) {
    const std::int64_t left = tile.last_token() - first;
    const int tokens = left < kPieceTokens ? static_cast<int>(left) : kPieceTokens;
    block.sync();
    read_rows(block, tokens, head_dim, head_dim + 1, at.k, [&](int t) { return tile.key(first + t); });
    read_rows(block, tokens, value_dim, value_dim, at.v, [&](int t) { return tile.value(first + t); });
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
      float max_score = at.max_scores[q];
      for (int t = 0; t < tokens; ++t)
        max_score = scores[t] > max_score || scores[t] != scores[t] ? scores[t] : max_score;
      const float correction = max_score == -INFINITY ? 1.0F : expf(at.max_scores[q] - max_score);
      float total = at.totals[q] * correction;
      for (int t = 0; t < tokens; ++t) {
        scores[t] = max_score == -INFINITY ? 0.0F : expf(scores[t] - max_score);
        total += scores[t];
      }
      at.max_scores[q] = max_score;
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
  tile.store_results(block, at);
}

}  // namespace accord::engine
