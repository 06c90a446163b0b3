#pragma once
// Attention of many rows on tensor cores: over the paged cache, as for prompts and their chunks, and over tensors.

#include "engine/gpu/kernels/attend_tiles.hpp"
#include "engine/gpu/kernels/attention_kernels.hpp"

namespace accord::engine {

/// How the queries of one key head are divided into tiles: by rows with all heads if these fit, otherwise by rows
/// with one part of the heads after another.
struct TileShape {
  int heads_each, groups, rows_each;
  ACCORD_ON_DEVICE TileShape(int heads_per_kv_head, int queries)
      : heads_each(heads_per_kv_head < queries ? heads_per_kv_head : queries),
        groups((heads_per_kv_head + heads_each - 1) / heads_each),
        rows_each(queries / heads_each) {}
};

/// The queries of a tile: `row_count` rows from `first_row` on, each with `head_count` heads from `first_head` on.
struct TileQueries {
  std::int64_t first_row = 0, first_head = 0;
  int row_count = 0, head_count = 1;
  ACCORD_ON_DEVICE TileQueries(const TileShape& shape, int group, std::int64_t kv_head, int heads_per_kv_head)
      : first_head(kv_head * heads_per_kv_head + group * shape.heads_each) {
    const int left = heads_per_kv_head - group * shape.heads_each;
    head_count = left < shape.heads_each ? left : shape.heads_each;
  }
  ACCORD_ON_DEVICE int count() const { return row_count * head_count; }
  ACCORD_ON_DEVICE std::int64_t row(int query) const { return first_row + query / head_count; }
  ACCORD_ON_DEVICE std::int64_t head(int query) const { return first_head + query % head_count; }
};

/// Returns heads as Words. REQUIRES: rows and heads begin at multiples of a word.
ACCORD_ON_DEVICE inline const Words* words_of(const HeadRows& rows, std::int64_t offset) {
  return reinterpret_cast<const Words*>(static_cast<const std::uint16_t*>(rows.data) + offset);
}
ACCORD_ON_DEVICE inline void store_word(const HeadRows& rows, std::int64_t offset, std::uint32_t word) {
  *reinterpret_cast<std::uint32_t*>(static_cast<std::uint16_t*>(rows.data) + offset) = word;
}

/// PagedCall over a bfloat16 cache, with queries and output of bfloat16. A tile consists of neighbouring rows of the
/// batch and is processed one sequence at a time. Several short sequences can share a tile, so up to kTurns blocks
/// divide the sequences of a tile among them.
template <int kMaxDim>
struct PagedTiles : PagedCall {
  using Attend = AttendTiles<DType::kBFloat16, kMaxDim>;
  static constexpr const char* kName = kMaxDim == 64    ? "engine_paged_tiles_64"
                                       : kMaxDim == 128 ? "engine_paged_tiles_128"
                                                        : "engine_paged_tiles_256";
  static constexpr int kThreads = Attend::kThreads, kLanes = Attend::kLanes;
  static constexpr int kTurns = 4;

  /// For blocks of `threads` threads.
  ACCORD_ON_DEVICE std::int64_t works(int threads = kThreads) const {
    const TileShape shape(heads_per_kv_head(), Attend::queries_of(threads));
    return tiles(shape) * cache.kv_heads * shape.groups * kTurns;
  }

  template <typename Block>
  ACCORD_ON_DEVICE void operator()(Block& block) const {
    const TileShape shape(heads_per_kv_head(), Attend::queries_of(block.threads()));
    for (std::int64_t work = block.block(); work < works(block.threads()); work += block.blocks()) {
      const auto group = static_cast<int>(work % shape.groups);
      const std::int64_t kv_head = work / shape.groups % cache.kv_heads, rest = work / shape.groups / cache.kv_heads;
      // The last rows come first because they see the most tokens. Blocks of later turns have nothing to do if a tile
      // has only one sequence.
      const std::int64_t begin = (tiles(shape) - 1 - rest % tiles(shape)) * shape.rows_each;
      const std::int64_t end = begin + shape.rows_each < rows ? begin + shape.rows_each : rows;
      Tile tile{*this, kv_head, TileQueries(shape, group, kv_head, heads_per_kv_head())};
      const std::int64_t turn = rest / tiles(shape);
      int sequence = 0;
      for (std::int64_t row = begin; row < end; row += tile.tile_queries.row_count) {
        tile.set_rows(row, end);
        if (computes(batch.rows[row]) && sequence++ % kTurns == turn)
          Attend::attend(block, static_cast<int>(cache.head_dim), static_cast<int>(cache.value_dim), tile);
      }
    }
  }

 private:
  ACCORD_ON_DEVICE std::int64_t tiles(const TileShape& shape) const {
    return (rows + shape.rows_each - 1) / shape.rows_each;
  }

  struct Tile {
    const PagedTiles& of;
    std::int64_t kv_head;
    TileQueries tile_queries;
    const std::int32_t* table = nullptr;
    int first = 0, last = 0;

    /// Sets the queries to the rows of `row`'s sequence in [row, end).
    ACCORD_ON_DEVICE void set_rows(std::int64_t row, std::int64_t end) {
      const RowPlace place = of.batch.rows[row];
      std::int64_t after = row + 1;
      if (of.batch.rows[end - 1].table == place.table) after = end;  // the rows of a sequence follow each other
      while (after < end && of.batch.rows[after].table == place.table) ++after;
      tile_queries.first_row = row;
      tile_queries.row_count = static_cast<int>(after - row);
      table = of.batch.tables + place.table;
      first = visible_tokens(place.token).first;
      last = place.token + tile_queries.row_count;
    }
    ACCORD_ON_DEVICE QueryRow visible_tokens(int own) const {
      const std::int64_t before = of.window > 0 ? own + 1 - of.window : 0;
      return {before > 0 ? static_cast<int>(before) : 0, own + 1};
    }
    ACCORD_ON_DEVICE int queries() const { return tile_queries.count(); }
    ACCORD_ON_DEVICE int first_token() const { return first; }
    ACCORD_ON_DEVICE int last_token() const { return last; }
    ACCORD_ON_DEVICE QueryRow row(int query) const {
      return visible_tokens(of.batch.rows[tile_queries.row(query)].token);
    }
    ACCORD_ON_DEVICE std::int64_t row_of(int token) const { return of.cache.row_of(table, kv_head, token); }
    ACCORD_ON_DEVICE const Words* query_words(int query) const {
      return words_of(of.q, tile_queries.row(query) * of.q.row_stride + tile_queries.head(query) * of.q.head_stride);
    }
    ACCORD_ON_DEVICE const Words* key_words(std::int64_t row) const {
      return words_of({of.cache.keys}, row * of.cache.head_dim);
    }
    ACCORD_ON_DEVICE const Words* value_words(std::int64_t row) const {
      return words_of({of.cache.values}, row * of.cache.value_dim);
    }
    ACCORD_ON_DEVICE bool is_only_scaled() const { return of.softcap == 0.0F; }
    ACCORD_ON_DEVICE float scale() const { return of.scale; }
    ACCORD_ON_DEVICE float score(const QueryRow&, int, float product) const { return of.score(product); }
    ACCORD_ON_DEVICE void store(int query, int d, std::uint32_t word) const {
      store_word(of.output,
                 tile_queries.row(query) * of.output.row_stride + tile_queries.head(query) * of.output.head_stride + d,
                 word);
    }
  };
};

/// WholeCall over tensors of kDType.
template <DType kDType, int kMaxDim>
struct WholeTiles : WholeCall {
  using Attend = AttendTiles<kDType, kMaxDim>;
  static constexpr bool kIsBFloat16 = kDType == DType::kBFloat16;
  static constexpr const char* kName =
      kMaxDim == 64    ? (kIsBFloat16 ? "engine_whole_tiles_64_bfloat16" : "engine_whole_tiles_64_float16")
      : kMaxDim == 128 ? (kIsBFloat16 ? "engine_whole_tiles_128_bfloat16" : "engine_whole_tiles_128_float16")
                       : (kIsBFloat16 ? "engine_whole_tiles_256_bfloat16" : "engine_whole_tiles_256_float16");
  static constexpr int kThreads = Attend::kThreads, kLanes = Attend::kLanes;

  ACCORD_ON_DEVICE std::int64_t works(int threads = kThreads) const {
    const TileShape shape(heads_per_kv_head(), Attend::queries_of(threads));
    return tiles(shape) * batch * kv_heads * shape.groups;
  }

  template <typename Block>
  ACCORD_ON_DEVICE void operator()(Block& block) const {
    const TileShape shape(heads_per_kv_head(), Attend::queries_of(block.threads()));
    for (std::int64_t work = block.block(); work < works(block.threads()); work += block.blocks()) {
      const auto group = static_cast<int>(work % shape.groups);
      const std::int64_t kv_head = work / shape.groups % kv_heads, rest = work / shape.groups / kv_heads;
      Tile tile{*this, rest % batch, kv_head, TileQueries(shape, group, kv_head, heads_per_kv_head())};
      // The last rows come first because they may see the most tokens.
      tile.tile_queries.first_row = (tiles(shape) - 1 - rest / batch) * shape.rows_each;
      const std::int64_t left = q_len - tile.tile_queries.first_row;
      tile.tile_queries.row_count = left < shape.rows_each ? static_cast<int>(left) : shape.rows_each;
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
      const std::int64_t row = tile_queries.row(query);
      return {0, static_cast<int>(of.visible_tokens(row)), of.mask_offset(in_batch, tile_queries.head(query), row)};
    }
    ACCORD_ON_DEVICE std::int64_t row_of(int token) const { return token; }
    ACCORD_ON_DEVICE const Words* query_words(int query) const {
      return words_of(of.q, in_batch * of.q_batch_stride + tile_queries.row(query) * of.q.row_stride +
                                tile_queries.head(query) * of.q.head_stride);
    }
    ACCORD_ON_DEVICE const Words* key_words(std::int64_t row) const {
      return words_of(of.k, in_batch * of.k_batch_stride + row * of.k.row_stride + kv_head * of.k.head_stride);
    }
    ACCORD_ON_DEVICE const Words* value_words(std::int64_t row) const {
      return words_of(of.v, in_batch * of.v_batch_stride + row * of.v.row_stride + kv_head * of.v.head_stride);
    }
    ACCORD_ON_DEVICE bool is_only_scaled() const { return of.mask_kind == WholeCall::Mask::kNone; }
    ACCORD_ON_DEVICE float scale() const { return of.scale; }
    ACCORD_ON_DEVICE float score(const QueryRow& row, int token, float product) const {
      return of.score(row.mask, token, product);
    }
    ACCORD_ON_DEVICE void store(int query, int d, std::uint32_t word) const {
      store_word(of.output,
                 in_batch * of.output_batch_stride + tile_queries.row(query) * of.output.row_stride +
                     tile_queries.head(query) * of.output.head_stride + d,
                 word);
    }
  };
};

}  // namespace accord::engine
