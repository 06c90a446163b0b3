#pragma once
// Attention of many queries on tensor cores (Dao 2023, FlashAttention-2). Each block has a tile of queries, 16 or 32
// for each of its warps, and works through the tokens that they see piece by piece. The keys and values of the current
// piece are in shared memory while those of the next piece are being copied there:
//   1. scores: queries times keys, summed in float32 in the registers of each warp;
//   2. a softmax that is corrected whenever a larger score appears;
//   3. the softmax weights, rounded to 16 bits, times the values, summed in float32.
// Pieces begin at multiples of their size, so the bits of a row do not depend on the other queries of its tile.

#include "engine/gpu/kernels/tile_softmax.hpp"

namespace accord::engine {

/// Head sizes are multiples of this: the number of elements that one product on a tensor core sums over.
inline constexpr int kTileDim = 16;

/// For queries, keys and values of kDType, bfloat16 or float16, whose heads have up to kMaxDim elements. A warp has
/// 16 kHigh queries: it loads a key or value from shared memory once for all of them, so twice as many queries need
/// half the loads for each product.
template <DType kDType, int kMaxDim, int kHigh>
class AttendTiles {
 public:
  static constexpr int kThreads = 128;
  static constexpr int kLanes = device::kFragmentLanes;
  static constexpr int kQueriesOfWarp = kHigh * kQueriesOfSums;
  static constexpr int kPieceTokens = kMaxDim > 128 ? 32 : 64;

  ACCORD_ON_DEVICE static constexpr int queries_of(int threads) { return threads / kLanes * kQueriesOfWarp; }
  static constexpr std::size_t shared_bytes() {
    return static_cast<std::size_t>((queries_of(kThreads) + 4 * kPieceTokens) * kPitch) * sizeof(Words) +
           2 * kPieceTokens * sizeof(std::int32_t);
  }

  /// Computes attention for the work that `tile` describes. Tile provides, for one block, besides the calls for
  /// TileSoftmax:
  ///   queries()                       at most queries_of(block.threads())
  ///   row(query)                      neither end of a QueryRow is smaller for a later query
  ///   first_token(), last_token()     the range of tokens that any of the queries may see; nothing else is read
  ///   row_of(token)                   the row that holds the token's key and value, not negative
  ///   query_words(query)              a head, as Words
  ///   keys(), values()                WordRows of the cache or the tensors
  ///   output_pairs(query)             where a query's result belongs, in pairs of elements
  /// All threads of the block must call it.
  template <typename Block, typename Tile>
  ACCORD_ON_DEVICE static void attend(Block& block, int head_dim, int value_dim, const Tile& tile) {
    const Memory at(block);
    const int lane = block.lane();
    const int first = tile.first_token() / kPieceTokens * kPieceTokens, last = tile.last_token();
    block.sync();  // the previous contents may still be in use
    find_rows(block, at, tile, first, 0);
    find_rows(block, at, tile, first + kPieceTokens, 1);
    load_queries(block, at, tile, head_dim);
    block.sync();
    load_piece(block, at, tile, 0, head_dim, value_dim);
    block.wait_copies();
    block.sync();

    const bool has_queries = first_query(block) < tile.queries();
    Queries queries = {};
    if (kQueriesInRegisters && has_queries) {
      ACCORD_UNROLLED
      for (int i = 0; i < kHigh; ++i) {
        ACCORD_UNROLLED
        for (int step = 0; step < kMaxDim / kTileDim; ++step)
          if (step * kTileDim < head_dim)
            queries.of[i][step] = block.load_tiles(at.query(first_query(block) + i * kQueriesOfSums, step, lane));
      }
    }
    TokenRange range;  // the tokens that any query of this warp sees
    TileSoftmax softmax[kHigh];
    if (has_queries) {
      const int after = first_query(block) + kQueriesOfWarp;
      const QueryRow earliest = tile.row(first_query(block));
      const QueryRow latest = tile.row((after < tile.queries() ? after : tile.queries()) - 1);
      range = {earliest.first, latest.last};
      ACCORD_UNROLLED
      for (int i = 0; i < kHigh; ++i) {
        softmax[i].query = first_query(block) + i * kQueriesOfSums + lane / 4;
        softmax[i].common = {latest.first, earliest.last};
      }
    }
    Sums sums[kHigh][kMaxDim / 8] = {};
    int turn = 0;
    ACCORD_UNROLLED_BY(1)
    for (int token = first; token < last; token += kPieceTokens, turn ^= 1) {
      block.wait_copies();
      block.sync();  // the piece has arrived, and the previous one is no longer read
      if (token + kPieceTokens < last) load_piece(block, at, tile, turn ^ 1, head_dim, value_dim);
      find_rows(block, at, tile, token + 2 * kPieceTokens, turn);
      if (token + kPieceTokens <= range.first || range.last <= token) continue;
      Sums scores[kHigh][kPieceTokens / 8] = {};
      if (head_dim == kMaxDim) {
        multiply_keys<true>(block, at, turn, head_dim, queries, scores);
      } else {
        multiply_keys<false>(block, at, turn, head_dim, queries, scores);
      }
      ACCORD_UNROLLED
      for (int i = 0; i < kHigh; ++i) softmax[i].update(block, tile, token, scores[i], sums[i]);
      if (value_dim == kMaxDim) {
        add_values<true>(block, at, turn, value_dim, scores, sums);
      } else {
        add_values<false>(block, at, turn, value_dim, scores, sums);
      }
    }
    if (!has_queries) return;
    ACCORD_UNROLLED
    for (int i = 0; i < kHigh; ++i) store_results(block, tile, value_dim, softmax[i], sums[i]);
  }

 private:
  using Tiles = device::Tiles;
  using Sums = device::Sums;
  static constexpr int kEach = kElementsOfWords<kDType>;
  /// True if queries stay in registers; otherwise they are read from shared memory for each piece.
  static constexpr bool kQueriesInRegisters = kMaxDim * kHigh <= 128;

  /// Row pitch in Words: one more than the longest row has, so that the eight rows that a tile reads at once are in
  /// different banks.
  static constexpr int kPitch = kMaxDim / kEach + 1;
  static constexpr int kWidth = kMaxDim / kEach;  ///< lanes that copy a row

  /// First query of the calling warp.
  template <typename Block>
  ACCORD_ON_DEVICE static int first_query(Block& block) {
    return block.thread() / kLanes * kQueriesOfWarp;
  }

  /// The queries of the warp, if they stay in registers.
  struct Queries {
    Tiles of[kHigh][kQueriesInRegisters ? kMaxDim / kTileDim : 1];
  };

  /// The block's shared memory, and the address that a lane passes to load_tiles() for 16 elements from 16 * step on.
  struct Memory {
    Words *q, *k, *v;    ///< [queries], [2][kPieceTokens], [2][kPieceTokens] rows
    std::int32_t* rows;  ///< [2][kPieceTokens], for two pieces; -1 for tokens that are not read
    template <typename Block>
    ACCORD_ON_DEVICE explicit Memory(Block& block) {
      q = reinterpret_cast<Words*>(block.shared());
      k = q + queries_of(block.threads()) * kPitch;
      v = k + 2 * kPieceTokens * kPitch;
      rows = reinterpret_cast<std::int32_t*>(v + 2 * kPieceTokens * kPitch);
    }
    ACCORD_ON_DEVICE const Words* query(int first, int step, int lane) const {
      return q + (first + lane % 16) * kPitch + step * 2 + lane / 16;
    }
    ACCORD_ON_DEVICE const Words* key(int turn, int first, int step, int lane) const {
      return k + (turn * kPieceTokens + first + lane / 16 * 8 + lane % 8) * kPitch + step * 2 + lane / 8 % 2;
    }
    ACCORD_ON_DEVICE const Words* value(int turn, int first, int step, int lane) const {
      return v + (turn * kPieceTokens + first + lane % 16) * kPitch + step * 2 + lane / 16;
    }
  };

  template <typename Block, typename Tile>
  ACCORD_ON_DEVICE static void find_rows(Block& block, const Memory& at, const Tile& tile, int first, int turn) {
    for (int i = block.thread(); i < kPieceTokens; i += block.threads()) {
      const int token = first + i;
      const bool is_visible = token >= tile.first_token() && token < tile.last_token();
      at.rows[turn * kPieceTokens + i] = is_visible ? tile.row_of(token) : -1;
    }
  }

  // Rows of shorter heads are filled with zeros, which are not used, so that no lane takes a branch.

  template <typename Block, typename Tile>
  ACCORD_ON_DEVICE static void load_queries(Block& block, const Memory& at, const Tile& tile, int head_dim) {
    const int word = block.thread() % kWidth;
    ACCORD_UNROLLED_BY(2)
    for (int i = block.thread() / kWidth; i < queries_of(block.threads()); i += block.threads() / kWidth) {
      const int query = i < tile.queries() ? i : 0;
      block.copy_async(at.q + i * kPitch + word, tile.query_words(query) + word, i == query && word * kEach < head_dim);
    }
  }

  template <typename Block, typename Tile>
  ACCORD_ON_DEVICE static void load_piece(Block& block, const Memory& at, const Tile& tile, int turn, int head_dim,
                                          int value_dim) {
    const int word = block.thread() % kWidth;
    const WordRows keys = tile.keys().column(word), values = tile.values().column(word);
    ACCORD_UNROLLED_BY(4)
    for (int i = block.thread() / kWidth; i < kPieceTokens; i += block.threads() / kWidth) {
      const int to = turn * kPieceTokens + i, row = at.rows[to], clamped_row = row < 0 ? 0 : row;
      block.copy_async(at.k + to * kPitch + word, keys.row(clamped_row), row >= 0 && word * kEach < head_dim);
      block.copy_async(at.v + to * kPitch + word, values.row(clamped_row), row >= 0 && word * kEach < value_dim);
    }
  }

  /// kIsFull: heads have kMaxDim elements, so the products follow each other without checks of the size.
  template <bool kIsFull, typename Block>
  ACCORD_ON_DEVICE static void multiply_keys(Block& block, const Memory& at, int turn, int head_dim,
                                             const Queries& queries, Sums (&scores)[kHigh][kPieceTokens / 8]) {
    const int lane = block.lane();
    ACCORD_UNROLLED
    for (int step = 0; step < kMaxDim / kTileDim; ++step) {
      if (!kIsFull && step * kTileDim >= head_dim) continue;
      Tiles a[kHigh];
      ACCORD_UNROLLED
      for (int high = 0; high < kHigh; ++high)
        a[high] = kQueriesInRegisters
                      ? queries.of[high][step]
                      : block.load_tiles(at.query(first_query(block) + high * kQueriesOfSums, step, lane));
      ACCORD_UNROLLED
      for (int i = 0; i < kPieceTokens / 16; ++i) {
        const Tiles b = block.load_tiles(at.key(turn, i * 16, step, lane));
        ACCORD_UNROLLED
        for (int high = 0; high < kHigh; ++high) {
          block.template multiply<kDType>(a[high], {b.of[0], b.of[1]}, scores[high][2 * i]);
          block.template multiply<kDType>(a[high], {b.of[2], b.of[3]}, scores[high][2 * i + 1]);
        }
      }
    }
  }

  template <bool kIsFull, typename Block>
  ACCORD_ON_DEVICE static void add_values(Block& block, const Memory& at, int turn, int value_dim,
                                          const Sums (&scores)[kHigh][kPieceTokens / 8],
                                          Sums (&sums)[kHigh][kMaxDim / 8]) {
    const int lane = block.lane();
    ACCORD_UNROLLED
    for (int i = 0; i < kPieceTokens / 16; ++i) {
      Tiles a[kHigh];
      ACCORD_UNROLLED
      for (int high = 0; high < kHigh; ++high)
        a[high] = tiles_of_weights<kDType>(scores[high][2 * i], scores[high][2 * i + 1]);
      ACCORD_UNROLLED
      for (int step = 0; step < kMaxDim / kTileDim; ++step) {
        if (!kIsFull && step * kTileDim >= value_dim) continue;
        const Tiles b = block.load_transposed(at.value(turn, i * 16, step, lane));
        ACCORD_UNROLLED
        for (int high = 0; high < kHigh; ++high) {
          block.template multiply<kDType>(a[high], {b.of[0], b.of[1]}, sums[high][2 * step]);
          block.template multiply<kDType>(a[high], {b.of[2], b.of[3]}, sums[high][2 * step + 1]);
        }
      }
    }
  }

  template <typename Block, typename Tile>
  ACCORD_ON_DEVICE static void store_results(Block& block, const Tile& tile, int value_dim, const TileSoftmax& softmax,
                                             const Sums (&sums)[kMaxDim / 8]) {
    const int lane = block.lane();
    ACCORD_UNROLLED
    for (int i = 0; i < 2; ++i) {
      const int query = softmax.query + i * 8;
      const float total = softmax.whole_total(block, i);
      if (query >= tile.queries()) continue;
      const float factor = total == 0.0F ? 0.0F : 1.0F / total;
      std::uint32_t* const to = tile.output_pairs(query) + lane % 4;
      ACCORD_UNROLLED
      for (int at = 0; at < kMaxDim / 8; ++at)
        if (at * 8 < value_dim)
          to[at * 4] = word_of_pair<kDType>(sums[at].of[i * 2] * factor, sums[at].of[i * 2 + 1] * factor);
    }
  }
};

}  // namespace accord::engine
