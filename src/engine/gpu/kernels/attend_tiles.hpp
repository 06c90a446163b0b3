#pragma once
// Attention of many queries on tensor cores (Dao 2023, FlashAttention-2). Each block has a tile of queries, 16 for
// each of its warps, and works through the tokens that they see piece by piece. The keys and values of the current
// piece are in shared memory while those of the next piece are being copied there:
//   1. scores: queries times keys, summed in float32 in the registers of each warp;
//   2. a softmax that is corrected whenever a larger score appears; the scores of one query are held by four lanes;
//   3. the softmax weights, rounded to 16 bits, times the values, summed in float32.
// Pieces begin at multiples of their size, so the bits of a row do not depend on the other queries of its tile.

#include <cmath>

#include "engine/gpu/kernels/words.hpp"

namespace accord::engine {

/// Head sizes are multiples of this: the number of elements that one product on a tensor core sums over.
inline constexpr int kTileDim = 16;
inline constexpr int kQueriesOfWarp = 16;

/// A query sees the tokens [first, last). `mask`: for Tile::score.
struct QueryRow {
  int first = 0, last = 0;
  std::int64_t mask = 0;
};

/// For queries, keys and values of kDType, bfloat16 or float16, whose heads have up to kMaxDim elements.
template <DType kDType, int kMaxDim>
class AttendTiles {
 public:
  static constexpr int kThreads = 128;
  static constexpr int kLanes = device::kFragmentLanes;
  static constexpr int kPieceTokens = kMaxDim > 128 ? 32 : 64;

  ACCORD_ON_DEVICE static constexpr int queries_of(int threads) { return threads / kLanes * kQueriesOfWarp; }
  static std::size_t shared_bytes(std::int64_t head_dim, std::int64_t value_dim) {
    const std::int64_t words = (queries_of(kThreads) + 2 * kPieceTokens) * pitch_of(static_cast<int>(head_dim)) +
                               2 * kPieceTokens * pitch_of(static_cast<int>(value_dim));
    return static_cast<std::size_t>(words) * sizeof(Words) + 2 * kPieceTokens * sizeof(std::int64_t);
  }

  /// Computes attention for the work that `tile` describes. Tile provides, for one block:
  ///   queries()                       the number of queries, at most queries_of(block.threads())
  ///   first_token(), last_token()     the range of tokens that any of the queries may see; nothing else is read
  ///   row(query)                      the QueryRow of a query
  ///   row_of(token)                   the row that holds the token's key and value, not negative
  ///   query_words(query), key_words(row), value_words(row)    heads, as Words
  ///   is_only_scaled(), scale()       true if a score is only the product times scale()
  ///   score(row, token, product)      the score of a QueryRow and a token that it sees, in the general case
  ///   store(query, d, word)           stores two elements of the result, beginning with element d
  /// All threads of the block must call it.
  template <typename Block, typename Tile>
  ACCORD_ON_DEVICE static void attend(Block& block, int head_dim, int value_dim, const Tile& tile) {
    const Memory at(block, head_dim, value_dim);
    const int lane = block.lane();
    const bool has_queries = first_query(block) < tile.queries();
    const int first = tile.first_token() / kPieceTokens * kPieceTokens, last = tile.last_token();
    block.sync();  // the previous contents may still be in use
    find_rows(block, at, tile, first, 0);
    find_rows(block, at, tile, first + kPieceTokens, 1);
    load_queries(block, at, tile);
    block.sync();
    load_piece(block, at, tile, 0);
    block.wait_copies();
    block.sync();

    Queries queries;
    if (kQueriesInRegisters && has_queries) {
      ACCORD_UNROLLED
      for (int step = 0; step < kMaxDim / kTileDim; ++step)
        if (step * kTileDim < head_dim) queries.of[step] = block.load_tiles(at.query(first_query(block), step, lane));
    }
    Rows rows;
    ACCORD_UNROLLED
    for (int i = 0; i < 2; ++i) {
      const int query = first_query(block) + lane / 4 + i * 8;
      if (query < tile.queries()) rows.of[i] = tile.row(query);
    }
    Sums sums[kMaxDim / 8] = {};
    int turn = 0;
    ACCORD_UNROLLED_BY(1)
    for (int token = first; token < last; token += kPieceTokens, turn ^= 1) {
      block.wait_copies();
      block.sync();  // the piece has arrived, and the previous one is no longer read
      if (token + kPieceTokens < last) load_piece(block, at, tile, turn ^ 1);
      find_rows(block, at, tile, token + 2 * kPieceTokens, turn);
      if (!has_queries) continue;
      Sums scores[kPieceTokens / 8] = {};
      if (head_dim == kMaxDim) {
        multiply_keys<true>(block, at, turn, queries, scores);
      } else {
        multiply_keys<false>(block, at, turn, queries, scores);
      }
      update_softmax(block, tile, token, rows, scores, sums);
      if (value_dim == kMaxDim) {
        add_values<true>(block, at, turn, scores, sums);
      } else {
        add_values<false>(block, at, turn, scores, sums);
      }
    }
    if (has_queries) store_results(block, tile, value_dim, first_query(block) + lane / 4, rows, sums);
  }

 private:
  using Tiles = device::Tiles;
  using Sums = device::Sums;
  static constexpr int kEach = kElementsOfWords<kDType>;
  /// True if queries stay in registers; otherwise they are read from shared memory for each piece.
  static constexpr bool kQueriesInRegisters = kMaxDim <= 128;
  static constexpr float kLog2OfE = 1.4426950408889634F;

  /// Row pitch in Words: one more than a row has, so that the eight rows that a tile reads at once are in different
  /// banks.
  ACCORD_ON_DEVICE static constexpr int pitch_of(int dim) { return dim / kEach + 1; }

  /// First query of the calling warp.
  template <typename Block>
  ACCORD_ON_DEVICE static int first_query(Block& block) {
    return block.thread() / kLanes * kQueriesOfWarp;
  }

  /// The queries of the warp, if they stay in registers.
  struct Queries {
    Tiles of[kQueriesInRegisters ? kMaxDim / kTileDim : 1];
  };

  /// The block's shared memory, and the address that a lane passes to load_tiles() for 16 elements from 16 * step on.
  struct Memory {
    int key_pitch, value_pitch;
    Words *q, *k, *v;    ///< [queries], [2][kPieceTokens], [2][kPieceTokens] rows
    std::int64_t* rows;  ///< [2][kPieceTokens], for two pieces; -1 for tokens that are not read
    template <typename Block>
    ACCORD_ON_DEVICE Memory(Block& block, int head_dim, int value_dim)
        : key_pitch(pitch_of(head_dim)), value_pitch(pitch_of(value_dim)) {
      q = reinterpret_cast<Words*>(block.shared());
      k = q + queries_of(block.threads()) * key_pitch;
      v = k + 2 * kPieceTokens * key_pitch;
      rows = reinterpret_cast<std::int64_t*>(v + 2 * kPieceTokens * value_pitch);
    }
    ACCORD_ON_DEVICE int head_dim() const { return (key_pitch - 1) * kEach; }
    ACCORD_ON_DEVICE int value_dim() const { return (value_pitch - 1) * kEach; }
    ACCORD_ON_DEVICE const Words* query(int first, int step, int lane) const {
      return q + (first + lane % 16) * key_pitch + step * 2 + lane / 16;
    }
    ACCORD_ON_DEVICE const Words* key(int turn, int first, int step, int lane) const {
      return k + (turn * kPieceTokens + first + lane / 16 * 8 + lane % 8) * key_pitch + step * 2 + lane / 8 % 2;
    }
    ACCORD_ON_DEVICE const Words* value(int turn, int first, int step, int lane) const {
      return v + (turn * kPieceTokens + first + lane % 16) * value_pitch + step * 2 + lane / 16;
    }
  };

  /// The state of a lane's two queries.
  struct Rows {
    QueryRow of[2];
    float max_scores[2] = {-INFINITY, -INFINITY};
    float totals[2] = {0.0F, 0.0F};  ///< over this lane's tokens only
  };

  ACCORD_ON_DEVICE static std::uint32_t pair_of(float first, float second) {
    return word_of_pair<kDType>(first, second);
  }

  template <typename Block, typename Tile>
  ACCORD_ON_DEVICE static void find_rows(Block& block, const Memory& at, const Tile& tile, int first, int turn) {
    for (int i = block.thread(); i < kPieceTokens; i += block.threads()) {
      const int token = first + i;
      const bool is_visible = token >= tile.first_token() && token < tile.last_token();
      at.rows[turn * kPieceTokens + i] = is_visible ? tile.row_of(token) : -1;
    }
  }

  template <typename Block, typename Tile>
  ACCORD_ON_DEVICE static void load_queries(Block& block, const Memory& at, const Tile& tile) {
    constexpr int kWidth = kMaxDim / kEach;  // lanes per row
    const int word = block.thread() % kWidth;
    if (word >= at.key_pitch - 1) return;
    for (int i = block.thread() / kWidth; i < queries_of(block.threads()); i += block.threads() / kWidth) {
      const bool is_present = i < tile.queries();
      block.copy_async(at.q + i * at.key_pitch + word, tile.query_words(is_present ? i : 0) + word, is_present);
    }
  }

  template <typename Block, typename Tile>
  ACCORD_ON_DEVICE static void load_piece(Block& block, const Memory& at, const Tile& tile, int turn) {
    constexpr int kWidth = kMaxDim / kEach;
    const int word = block.thread() % kWidth;
    ACCORD_UNROLLED_BY(2)
    for (int i = block.thread() / kWidth; i < kPieceTokens; i += block.threads() / kWidth) {
      const int to = turn * kPieceTokens + i;
      const std::int64_t row = at.rows[to], clamped_row = row < 0 ? 0 : row;
      if (word < at.key_pitch - 1)
        block.copy_async(at.k + to * at.key_pitch + word, tile.key_words(clamped_row) + word, row >= 0);
      if (word < at.value_pitch - 1)
        block.copy_async(at.v + to * at.value_pitch + word, tile.value_words(clamped_row) + word, row >= 0);
    }
  }

  /// kIsFull: heads have kMaxDim elements, so the products follow each other without checks of the size.
  template <bool kIsFull, typename Block>
  ACCORD_ON_DEVICE static void multiply_keys(Block& block, const Memory& at, int turn, const Queries& queries,
                                             Sums (&scores)[kPieceTokens / 8]) {
    const int lane = block.lane();
    ACCORD_UNROLLED
    for (int step = 0; step < kMaxDim / kTileDim; ++step) {
      if (!kIsFull && step * kTileDim >= at.head_dim()) continue;
      const Tiles a =
          kQueriesInRegisters ? queries.of[step] : block.load_tiles(at.query(first_query(block), step, lane));
      ACCORD_UNROLLED
      for (int i = 0; i < kPieceTokens / 16; ++i) {
        const Tiles b = block.load_tiles(at.key(turn, i * 16, step, lane));
        block.template multiply<kDType>(a, {b.of[0], b.of[1]}, scores[2 * i]);
        block.template multiply<kDType>(a, {b.of[2], b.of[3]}, scores[2 * i + 1]);
      }
    }
  }

  template <bool kIsFull, typename Block>
  ACCORD_ON_DEVICE static void add_values(Block& block, const Memory& at, int turn,
                                          const Sums (&scores)[kPieceTokens / 8], Sums (&sums)[kMaxDim / 8]) {
    const int lane = block.lane();
    ACCORD_UNROLLED
    for (int i = 0; i < kPieceTokens / 16; ++i) {
      const Sums &left = scores[2 * i], &right = scores[2 * i + 1];
      const Tiles a{{pair_of(left.of[0], left.of[1]), pair_of(left.of[2], left.of[3]),
                     pair_of(right.of[0], right.of[1]), pair_of(right.of[2], right.of[3])}};
      ACCORD_UNROLLED
      for (int step = 0; step < kMaxDim / kTileDim; ++step) {
        if (!kIsFull && step * kTileDim >= at.value_dim()) continue;
        const Tiles b = block.load_transposed(at.value(turn, i * 16, step, lane));
        block.template multiply<kDType>(a, {b.of[0], b.of[1]}, sums[2 * step]);
        block.template multiply<kDType>(a, {b.of[2], b.of[3]}, sums[2 * step + 1]);
      }
    }
  }

  /// Turns the products into softmax weights, and rescales the sums to the largest score so far.
  template <typename Block, typename Tile>
  ACCORD_ON_DEVICE static void update_softmax(Block& block, const Tile& tile, int token, Rows& rows,
                                              Sums (&scores)[kPieceTokens / 8], Sums (&sums)[kMaxDim / 8]) {
    const int lane = block.lane();
    ACCORD_UNROLLED
    for (int i = 0; i < 2; ++i) {
      const QueryRow& row = rows.of[i];
      const auto score_at = [&](int at) -> float& { return scores[at / 2].of[i * 2 + at % 2]; };
      const auto token_at = [&](int at) { return token + at / 2 * 8 + lane % 4 * 2 + at % 2; };
      const auto sees = [&](int at) { return row.first <= token_at(at) && token_at(at) < row.last; };
      if (tile.is_only_scaled()) {
        ACCORD_UNROLLED
        for (int at = 0; at < kPieceTokens / 4; ++at) score_at(at) *= tile.scale();
      } else {
        ACCORD_UNROLLED
        for (int at = 0; at < kPieceTokens / 4; ++at)
          if (sees(at)) score_at(at) = tile.score(row, token_at(at), score_at(at));
      }
      if (token < row.first || row.last < token + kPieceTokens) {
        ACCORD_UNROLLED
        for (int at = 0; at < kPieceTokens / 4; ++at)
          if (!sees(at)) score_at(at) = -INFINITY;
      }
      float largest = -INFINITY;
      ACCORD_UNROLLED
      for (int at = 0; at < kPieceTokens / 4; ++at) largest = fmaxf(largest, score_at(at));
      ACCORD_UNROLLED
      for (int other = 1; other < 4; other *= 2) largest = fmaxf(largest, block.from_lane(largest, lane ^ other));
      const float new_max = fmaxf(rows.max_scores[i], largest), base = new_max == -INFINITY ? 0.0F : new_max;
      const float correction = exp2f((rows.max_scores[i] - base) * kLog2OfE);
      float total = rows.totals[i] * correction;
      ACCORD_UNROLLED
      for (int at = 0; at < kPieceTokens / 4; ++at) {
        // Without a mask, products are far smaller than the largest float. A mask may give whole rows such values,
        // and then `base` times a factor above 1 would overflow.
        score_at(at) = tile.is_only_scaled() ? exp2f(multiply_add(score_at(at), kLog2OfE, -base * kLog2OfE))
                                             : exp2f((score_at(at) - base) * kLog2OfE);
        total += score_at(at);
      }
      ACCORD_UNROLLED
      for (int at = 0; at < kMaxDim / 4; ++at) sums[at / 2].of[i * 2 + at % 2] *= correction;
      rows.max_scores[i] = new_max;
      rows.totals[i] = total;
    }
  }

  template <typename Block, typename Tile>
  ACCORD_ON_DEVICE static void store_results(Block& block, const Tile& tile, int value_dim, int query, const Rows& rows,
                                             const Sums (&sums)[kMaxDim / 8]) {
    const int lane = block.lane();
    ACCORD_UNROLLED
    for (int i = 0; i < 2; ++i) {
      float total = rows.totals[i];
      ACCORD_UNROLLED
      for (int other = 1; other < 4; other *= 2) total += block.from_lane(total, lane ^ other);
      if (query + i * 8 >= tile.queries()) continue;
      const float factor = total == 0.0F ? 0.0F : 1.0F / total;
      ACCORD_UNROLLED
      for (int at = 0; at < kMaxDim / 8; ++at) {
        if (at * 8 >= value_dim) continue;
        tile.store(query + i * 8, at * 8 + lane % 4 * 2,
                   pair_of(sums[at].of[i * 2] * factor, sums[at].of[i * 2 + 1] * factor));
      }
    }
  }
};

}  // namespace accord::engine
