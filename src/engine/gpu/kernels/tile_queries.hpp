#pragma once
// The queries that a block computes on tensor cores: rows of one sequence, and heads that share a key head.

#include "engine/gpu/kernels/attention_kernels.hpp"
#include "engine/gpu/kernels/tile_softmax.hpp"

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
  int first_row = 0, row_count = 0, first_head = 0, head_count = 1;
  float heads_inverse = 1.0F;
  ACCORD_ON_DEVICE TileQueries(const TileShape& shape, int group, int kv_head, int heads_per_kv_head)
      : first_head(kv_head * heads_per_kv_head + group * shape.heads_each) {
    const int left = heads_per_kv_head - group * shape.heads_each;
    head_count = left < shape.heads_each ? left : shape.heads_each;
    heads_inverse = 1.0F / static_cast<float>(head_count);
  }
  ACCORD_ON_DEVICE int count() const { return row_count * head_count; }
  /// Returns the number of a query's row in the tile. The quotient is never within half of an inverse of a whole
  /// number, so the product does not round to the wrong side, and takes a fifth of a division's time.
  ACCORD_ON_DEVICE int row_of(int query) const {
    return static_cast<int>((static_cast<float>(query) + 0.5F) * heads_inverse);
  }
  ACCORD_ON_DEVICE int row(int query) const { return first_row + row_of(query); }
  ACCORD_ON_DEVICE int head(int query) const { return first_head + query - row_of(query) * head_count; }
  /// Returns where a query's head begins in `rows`, in elements.
  ACCORD_ON_DEVICE std::int64_t offset_in(const HeadRows& rows, int query) const {
    return row(query) * rows.row_stride + head(query) * rows.head_stride;
  }
};

/// Returns heads of 16-bit elements as Words. REQUIRES: rows and heads begin at multiples of a word.
ACCORD_ON_DEVICE inline const Words* words_of(const HeadRows& rows, std::int64_t offset) {
  return reinterpret_cast<const Words*>(static_cast<const std::uint16_t*>(rows.data) + offset);
}
/// Returns the address of elements [offset, offset + 2).
ACCORD_ON_DEVICE inline std::uint32_t* pairs_of(const HeadRows& rows, std::int64_t offset) {
  return reinterpret_cast<std::uint32_t*>(static_cast<std::uint16_t*>(rows.data) + offset);
}

/// A tile of a PagedCall with queries and output of bfloat16: `queries` of one sequence, and the tokens [first, last)
/// that any of them sees. REQUIRES: the cache has fewer than 2^31 rows.
struct PagedTile {
  const PagedCall& of;
  int kv_head;
  TileQueries tile_queries;
  const std::int32_t* table = nullptr;
  int own = 0;  ///< the token of the first row
  int first = 0, last = 0;
  float scale_before_cap = 0.0F;

  ACCORD_ON_DEVICE void set_rows(const RowPlace& place, int first_row, int count) {
    tile_queries.first_row = first_row;
    tile_queries.row_count = count;
    table = of.batch.tables + place.table;
    own = place.token;
    first = of.first_seen(own);
    last = own + count;
    scale_before_cap = of.softcap > 0.0F ? of.scale / of.softcap : 0.0F;
  }
  ACCORD_ON_DEVICE int queries() const { return tile_queries.count(); }
  ACCORD_ON_DEVICE int first_token() const { return first; }
  ACCORD_ON_DEVICE int last_token() const { return last; }
  ACCORD_ON_DEVICE QueryRow row(int query) const {
    const int token = own + tile_queries.row_of(query);
    return {of.first_seen(token), token + 1};
  }
  ACCORD_ON_DEVICE int row_of(int token) const {
    const auto index = static_cast<unsigned>(token), each = static_cast<unsigned>(of.cache.block_tokens);
    const unsigned block = index / each;
    return static_cast<int>((static_cast<unsigned>(table[block]) * static_cast<unsigned>(of.cache.kv_heads) +
                             static_cast<unsigned>(kv_head)) *
                                each +
                            index - block * each);
  }
  ACCORD_ON_DEVICE bool is_only_scaled() const { return of.softcap == 0.0F && of.scale > 0.0F; }
  ACCORD_ON_DEVICE float scale() const { return of.scale; }
  ACCORD_ON_DEVICE float score(const QueryRow&, int, float product) const {
    return of.softcap > 0.0F ? of.softcap * hyperbolic_tangent(product * scale_before_cap) : product * of.scale;
  }
};

}  // namespace accord::engine
