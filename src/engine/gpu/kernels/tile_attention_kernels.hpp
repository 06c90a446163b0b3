#pragma once
// Attention of many rows on tensor cores: over the paged cache, as for prompts and their chunks, and over tensors.

#include "engine/gpu/kernels/attend_tiles.hpp"
#include "engine/gpu/kernels/tile_queries.hpp"

namespace accord::engine {

/// PagedCall over a bfloat16 cache, with queries and output of bfloat16. A tile has rows of one sequence, as many as
/// fit, counted from the sequence's first row.
///
/// Only the device knows where sequences begin. Slots for tiles are numbered so that a block finds its tile from the
/// sequences' first rows alone: with tiles of T rows, those of sequence s begin at slot (first row of s) / T + s. This
/// leaves room for all of them, and at most one slot per sequence stays empty.
template <int kMaxDim, int kHigh>
struct PagedTiles : PagedCall {
  using Attend = AttendTiles<DType::kBFloat16, kMaxDim, kHigh>;
  static constexpr const char* kName = kHigh == 2 ? (kMaxDim == 64 ? "engine_paged_tiles_64" : "engine_paged_tiles_128")
                                       : kMaxDim == 64  ? "engine_paged_low_tiles_64"
                                       : kMaxDim == 128 ? "engine_paged_low_tiles_128"
                                                        : "engine_paged_low_tiles_256";
  static constexpr int kThreads = Attend::kThreads, kLanes = Attend::kLanes;

  /// Returns the blocks' works if the rows belong to `sequences` sequences. For blocks of `threads` threads.
  ACCORD_ON_DEVICE std::int64_t works(std::int64_t sequences, int threads = kThreads) const {
    const TileShape shape(heads_per_kv_head(), Attend::queries_of(threads));
    return (rows / shape.rows_each + sequences) * cache.kv_heads * shape.groups;
  }

  template <typename Block>
  ACCORD_ON_DEVICE void operator()(Block& block) const {
    const TileShape shape(heads_per_kv_head(), Attend::queries_of(block.threads()));
    const std::int64_t all = works(batch.sequence_count(), block.threads());
    for (std::int64_t work = block.block(); work < all; work += block.blocks()) {
      // The last slots come first because the last rows of a sequence see the most tokens.
      std::int64_t slot = all - 1 - work;
      const auto group = static_cast<int>(take_last(slot, shape.groups));
      const auto kv_head = static_cast<int>(take_last(slot, cache.kv_heads));
      PagedTile tile{*this, kv_head, TileQueries(shape, group, kv_head, heads_per_kv_head())};
      if (set_rows(block, tile, static_cast<int>(slot), shape.rows_each))
        Attend::attend(block, static_cast<int>(cache.head_dim), static_cast<int>(cache.value_dim), Tile{tile});
    }
  }

 private:
  struct Tile : PagedTile {
    ACCORD_ON_DEVICE const Words* query_words(int query) const {
      return words_of(of.q, tile_queries.offset_in(of.q, query));
    }
    ACCORD_ON_DEVICE WordRows keys() const { return {of.cache.keys, of.cache.head_dim * 2}; }
    ACCORD_ON_DEVICE WordRows values() const { return {of.cache.values, of.cache.value_dim * 2}; }
    ACCORD_ON_DEVICE std::uint32_t* output_pairs(int query) const {
      return pairs_of(of.output, tile_queries.offset_in(of.output, query));
    }
  };

  /// Sets the rows of `tile` to those of `slot`. Returns false if the slot is empty or its sequence is a short one.
  template <typename Block>
  ACCORD_ON_DEVICE bool set_rows(Block& block, PagedTile& tile, int slot, int rows_each) const {
    const int sequences = batch.sequence_count();
    int sequence = -1;  // the last one that begins at this slot or before
    for (int first = 0; first < sequences; first += block.lanes()) {
      const int mine = first + block.lane();
      sequence += block.warp_sum(mine < sequences && batch.first_row(mine) / rows_each + mine <= slot ? 1 : 0);
    }
    const int begin = batch.first_row(sequence);
    const RowPlace place = batch.rows[begin];
    const int before = (slot - begin / rows_each - sequence) * rows_each, left = place.rows - before;
    if (left <= 0 || !computes(place)) return false;
    tile.set_rows({place.token + before, place.table, place.rows}, begin + before, left < rows_each ? left : rows_each);
    return true;
  }
};

/// WholeCall over tensors of kDType. REQUIRES: there are fewer than 2^31 queries and
/// tokens, and rows of keys and values are fewer than 2^30 elements apart.
template <DType kDType, int kMaxDim, int kHigh>
struct WholeTiles : WholeCall {
  using Attend = AttendTiles<kDType, kMaxDim, kHigh>;
  static constexpr const char* name_of(const char* bfloat16, const char* float16) {
    return kDType == DType::kBFloat16 ? bfloat16 : float16;
  }
  static constexpr const char* kName =
      kHigh == 2       ? (kMaxDim == 64 ? name_of("engine_whole_tiles_64_bfloat16", "engine_whole_tiles_64_float16")
                                        : name_of("engine_whole_tiles_128_bfloat16", "engine_whole_tiles_128_float16"))
      : kMaxDim == 64  ? name_of("engine_whole_low_tiles_64_bfloat16", "engine_whole_low_tiles_64_float16")
      : kMaxDim == 128 ? name_of("engine_whole_low_tiles_128_bfloat16", "engine_whole_low_tiles_128_float16")
                       : name_of("engine_whole_low_tiles_256_bfloat16", "engine_whole_low_tiles_256_float16");
  static constexpr int kThreads = Attend::kThreads, kLanes = Attend::kLanes;

  ACCORD_ON_DEVICE std::int64_t works(int threads = kThreads) const {
    const TileShape shape(heads_per_kv_head(), Attend::queries_of(threads));
    return tiles(shape) * batch * kv_heads * shape.groups;
  }

  template <typename Block>
  ACCORD_ON_DEVICE void operator()(Block& block) const {
    const TileShape shape(heads_per_kv_head(), Attend::queries_of(block.threads()));
    for (std::int64_t work = block.block(); work < works(block.threads()); work += block.blocks()) {
      std::int64_t rest = work;
      const auto group = static_cast<int>(take_last(rest, shape.groups));
      const std::int64_t kv_head = take_last(rest, kv_heads), in_batch = take_last(rest, batch);
      Tile tile{*this, in_batch, kv_head, TileQueries(shape, group, static_cast<int>(kv_head), heads_per_kv_head())};
      // The last rows come first because they may see the most tokens.
      tile.tile_queries.first_row = static_cast<int>(tiles(shape) - 1 - rest) * shape.rows_each;
      const int left = static_cast<int>(q_len) - tile.tile_queries.first_row;
      tile.tile_queries.row_count = left < shape.rows_each ? left : shape.rows_each;
      Attend::attend(block, static_cast<int>(head_dim), static_cast<int>(value_dim), tile);
    }
  }

 private:
  ACCORD_ON_DEVICE std::int64_t tiles(const TileShape& shape) const {
    return (q_len + shape.rows_each - 1) / shape.rows_each;
  }

  struct Tile {
    const WholeTiles& of;
    std::int64_t in_batch, kv_head;
    TileQueries tile_queries;

    ACCORD_ON_DEVICE int queries() const { return tile_queries.count(); }
    ACCORD_ON_DEVICE int first_token() const { return 0; }
    ACCORD_ON_DEVICE int last_token() const {
      return static_cast<int>(of.visible_tokens(tile_queries.first_row + tile_queries.row_count - 1));
    }
    ACCORD_ON_DEVICE QueryRow row(int query) const {
      const int row = tile_queries.row(query);
      return {0, static_cast<int>(of.visible_tokens(row)), of.mask_offset(in_batch, tile_queries.head(query), row)};
    }
    ACCORD_ON_DEVICE int row_of(int token) const { return token; }
    ACCORD_ON_DEVICE const Words* query_words(int query) const {
      return words_of(of.q, in_batch * of.q_batch_stride + tile_queries.offset_in(of.q, query));
    }
    ACCORD_ON_DEVICE WordRows keys() const { return rows_of_heads(of.k, of.k_batch_stride); }
    ACCORD_ON_DEVICE WordRows values() const { return rows_of_heads(of.v, of.v_batch_stride); }
    ACCORD_ON_DEVICE bool is_only_scaled() const { return of.mask_kind == WholeCall::Mask::kNone && of.scale > 0.0F; }
    ACCORD_ON_DEVICE float scale() const { return of.scale; }
    ACCORD_ON_DEVICE float score(const QueryRow& row, int token, float product) const {
      return of.score(row.mask, token, product);
    }
    ACCORD_ON_DEVICE std::uint32_t* output_pairs(int query) const {
      return pairs_of(of.output, in_batch * of.output_batch_stride + tile_queries.offset_in(of.output, query));
    }
    ACCORD_ON_DEVICE WordRows rows_of_heads(const HeadRows& rows, std::int64_t batch_stride) const {
      return {words_of(rows, in_batch * batch_stride + kv_head * rows.head_stride), rows.row_stride * 2};
    }
  };
};

}  // namespace accord::engine
