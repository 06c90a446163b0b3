#pragma once
// The softmax of attention on tensor cores. It is corrected whenever a larger score appears (Milakov, Gimelshein
// 2018). Scores and sums are in the registers of a warp, as device::Sums.

#include <cmath>

#include "engine/gpu/kernels/words.hpp"

namespace accord::engine {

inline constexpr float kLog2OfE = 1.4426950408889634F;

/// 2^x; 0 where that is no normal number.
ACCORD_ON_DEVICE inline float power_of_two(float x) {
#ifdef __CUDA_ARCH__
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#else
  return std::exp2(x);
#endif
}

/// tanh(x), with an error of some 1e-7.
ACCORD_ON_DEVICE inline float hyperbolic_tangent(float x) {
#ifdef __CUDA_ARCH__
  return 1.0F - __fdividef(2.0F, power_of_two(x * (2.0F * kLog2OfE)) + 1.0F);  // tanhf and a division would branch
#else
  return std::tanh(x);
#endif
}

/// Rows of heads, as a lane that copies one word of each row addresses them.
struct WordRows {
  const std::byte* first;
  int row_bytes;
  /// `stride`: in bytes, less than 2^31.
  ACCORD_ON_DEVICE WordRows(const void* data, std::int64_t stride)
      : first(static_cast<const std::byte*>(data)), row_bytes(static_cast<int>(stride)) {}
  /// Returns the same rows, counted from a later word of each.
  ACCORD_ON_DEVICE WordRows column(int word) const {
    return {first + static_cast<std::ptrdiff_t>(sizeof(Words)) * word, row_bytes};
  }
  ACCORD_ON_DEVICE const Words* row(int number) const {
    return reinterpret_cast<const Words*>(first + std::int64_t{number} * row_bytes);
  }
};

/// The tokens [first, last).
struct TokenRange {
  int first = 0, last = 0;
};

/// A query sees the tokens [first, last). `mask`: for Tile::score.
struct QueryRow {
  int first = 0, last = 0;
  std::int64_t mask = 0;
};

/// The number of queries whose sums a warp holds in one set of Sums.
inline constexpr int kQueriesOfSums = 16;

/// The softmax of 16 queries. A lane has two of them: `query` and `query` + 8, with `query` = the first one + lane / 4.
/// Four lanes share a query, each with scores of two out of eight tokens.
///
/// Tile provides:
///   queries()                     the number of queries, at least 1. Those after the last one count as the last one
///   row(query)                    the QueryRow of a query
///   is_only_scaled(), scale()     true if a score is only the product times scale(), which is positive then
///   score(row, token, product)    the score of a QueryRow and a token that it sees, in the general case
struct TileSoftmax {
  int query = 0;
  TokenRange common;                             ///< tokens that all queries of the warp see
  float max_scores[2] = {-INFINITY, -INFINITY};  ///< products if they are only scaled, else scores
  float totals[2] = {0.0F, 0.0F};                ///< over this lane's tokens only

  /// Turns the products of the queries with the tokens from `token` on into softmax weights, and rescales `sums` to the
  /// largest score so far.
  template <int kScores, int kSums, typename Block, typename Tile>
  ACCORD_ON_DEVICE void update(Block& block, const Tile& tile, int token, device::Sums (&scores)[kScores],
                               device::Sums (&sums)[kSums]) {
    constexpr int kTokens = kScores * 8, kOfLane = kScores * 2;
    const int lane = block.lane();
    const bool is_masked = token < common.first || common.last < token + kTokens;
    ACCORD_UNROLLED
    for (int i = 0; i < 2; ++i) {
      const auto score_at = [&](int at) -> float& { return scores[at / 2].of[i * 2 + at % 2]; };
      if (is_masked || !tile.is_only_scaled()) {
        const int last = tile.queries() - 1;
        const QueryRow row = tile.row(query + i * 8 < last ? query + i * 8 : last);
        ACCORD_UNROLLED
        for (int at = 0; at < kOfLane; ++at) {
          const int its = token + at / 2 * 8 + lane % 4 * 2 + at % 2;
          if (its < row.first || row.last <= its) {
            score_at(at) = -INFINITY;
          } else if (!tile.is_only_scaled()) {
            score_at(at) = tile.score(row, its, score_at(at));
          }
        }
      }
      float largest = -INFINITY;
      ACCORD_UNROLLED
      for (int at = 0; at < kOfLane; ++at) largest = fmaxf(largest, score_at(at));
      ACCORD_UNROLLED
      for (int other = 1; other < 4; other *= 2) largest = fmaxf(largest, block.from_lane(largest, lane ^ other));
      const float before = max_scores[i], new_max = fmaxf(before, largest);
      const float base = new_max == -INFINITY ? 0.0F : new_max;
      float correction = 1.0F, total = 0.0F;
      if (tile.is_only_scaled()) {
        // Products are far smaller than the largest float, so the scaled base does not overflow.
        const float factor = tile.scale() * kLog2OfE, scaled_base = base * factor;
        correction = power_of_two(before * factor - scaled_base);  // exactly 1 if the maximum is the same
        ACCORD_UNROLLED
        for (int at = 0; at < kOfLane; ++at) {
          score_at(at) = power_of_two(multiply_add(score_at(at), factor, -scaled_base));
          total += score_at(at);
        }
      } else {
        // A mask may give a whole row values near the largest float, and then `base` times a factor would overflow.
        correction = power_of_two((before - base) * kLog2OfE);
        ACCORD_UNROLLED
        for (int at = 0; at < kOfLane; ++at) {
          score_at(at) = power_of_two((score_at(at) - base) * kLog2OfE);
          total += score_at(at);
        }
      }
      totals[i] = multiply_add(totals[i], correction, total);
      max_scores[i] = new_max;
      if (correction != 1.0F) {  // rare after the first tokens
        ACCORD_UNROLLED
        for (int at = 0; at < kSums * 2; ++at) sums[at / 2].of[i * 2 + at % 2] *= correction;
      }
    }
  }

  /// Adds up the total of query `i` over all lanes that have it.
  template <typename Block>
  ACCORD_ON_DEVICE float whole_total(Block& block, int i) const {
    float total = totals[i];
    ACCORD_UNROLLED
    for (int other = 1; other < 4; other *= 2) total += block.from_lane(total, block.lane() ^ other);
    return total;
  }
  /// The largest score of query `i` so far.
  template <typename Tile>
  ACCORD_ON_DEVICE float max_score(const Tile& tile, int i) const {
    return tile.is_only_scaled() ? max_scores[i] * tile.scale() : max_scores[i];
  }
};

/// Returns softmax weights of 16 tokens, rounded to kDType, as the left side of a product with their values. `left`,
/// `right`: of the first and the last 8 tokens.
template <DType kDType>
ACCORD_ON_DEVICE inline device::Tiles tiles_of_weights(const device::Sums& left, const device::Sums& right) {
  return {{word_of_pair<kDType>(left.of[0], left.of[1]), word_of_pair<kDType>(left.of[2], left.of[3]),
           word_of_pair<kDType>(right.of[0], right.of[1]), word_of_pair<kDType>(right.of[2], right.of[3])}};
}

}  // namespace accord::engine
