#pragma once
// Attention over the paged cache and over tensors.

#include <algorithm>

#include "engine/gpu/kernels/attend.hpp"
#include "engine/gpu/kernels/cache_kernels.hpp"
#include "engine/gpu/kernels/split_attention.hpp"
#include "engine/gpu/kernels/words.hpp"

namespace accord::engine {

/// Selects the rows of a call by their sequence: sequences with few rows in the call (short), as in decoding, or the
/// others (long), as in prompts.
enum class RowsOf : std::uint8_t { kShortSequences, kLongSequences };

/// output = softmax(scale q k^T) v for each row. A row sees the tokens of its sequence up to and including its own.
/// Rows of short sequences see them in parts, which different blocks compute.
struct PagedCall {
  DeviceCacheLayer cache;
  BatchTables batch;
  std::int64_t rows = 0, heads = 0, window = 0, chunk = 0;
  float scale = 1.0F, softcap = 0.0F;
  /// [heads], or nullptr. PagedAttention alone knows them.
  const float *sinks = nullptr, *slopes = nullptr;
  HeadRows q, output;
  RowsOf rows_of = RowsOf::kShortSequences;  ///< the rows to compute
  int few_rows = 1;                          ///< the most rows that a short sequence may have
  bool has_single_rows = false;              ///< every sequence has one row
  int parts_of_one = 1;  ///< parts wanted if one row or tile is computed, shared by all if there are several
  int most_parts = 1;
  /// For PartResults, if a row may have several parts.
  float* partial = nullptr;
  std::uint64_t* arrived = nullptr;

  ACCORD_ON_DEVICE int heads_per_kv_head() const { return static_cast<int>(heads / cache.kv_heads); }
  ACCORD_ON_DEVICE bool computes(const RowPlace& place) const {
    return (place.rows <= few_rows) == (rows_of == RowsOf::kShortSequences);
  }
  /// Returns the score of a query and a key that the query sees, from their product.
  ACCORD_ON_DEVICE float score(float product) const {
    const float score = product * scale;
    return softcap > 0.0F ? softcap * tanhf(score / softcap) : score;
  }
  /// Returns the first token that the row of token `own` sees.
  ACCORD_ON_DEVICE int first_seen(int own) const {
    const int of_window = window > 0 && own + 1 > window ? static_cast<int>(own + 1 - window) : 0;
    const int of_chunk = chunk > 0 ? static_cast<int>(own / chunk * chunk) : 0;
    return of_window > of_chunk ? of_window : of_chunk;
  }
  /// Returns the most parts that each has if `count` rows, or tiles of rows, are computed at the same time.
  ACCORD_ON_DEVICE int parts_each(std::int64_t count) const {
    const int sharing = static_cast<int>(count), wanted = (parts_of_one + sharing - 1) / sharing;
    return wanted < most_parts ? wanted : most_parts;
  }
  /// Returns where the blocks of one group, which compute the parts of the same queries, store their results. `group`:
  /// its number, from 0 on. `most`: parts that a group may have. `queries_each`: queries that it may have.
  ACCORD_ON_DEVICE PartResults results_of(std::int64_t group, int most, int queries_each) const {
    PartResults results;
    results.value_dim = static_cast<int>(cache.value_dim);
    results.queries_each = queries_each;
    const std::int64_t first = most == 1 ? 0 : group * most * queries_each;  // with one part there is no memory
    results.data = partial + first * PartResults::floats(results.value_dim);
    results.arrived = arrived + group;
    return results;
  }
};

/// Each block computes `tile_rows` rows, query heads of one key head, and one of the parts. Rows of short sequences
/// are computed one at a time, so their parts depend only on the position of the row's own token.
struct PagedAttention : PagedCall {
  static constexpr const char* kName = "engine_paged_attention";
  static constexpr int kThreads = 256;
  int tile_rows = 1;
  int tile_heads = 1;  ///< divides the query heads of a key head

  ACCORD_ON_DEVICE std::int64_t works() const {
    return (rows + tile_rows - 1) / tile_rows * head_groups() * most_of_row();
  }
  static std::size_t shared_bytes(const AttendSizes& sizes, int most_parts) {
    return std::max(attend_bytes(sizes), PartResults::shared_bytes(sizes.queries, most_parts));
  }

  template <typename Block>
  ACCORD_ON_DEVICE void operator()(Block& block) const {
    const int most = most_of_row();
    for (std::int64_t work = block.block(); work < works(); work += block.blocks()) {
      Tile tile{*this};
      tile.part = static_cast<int>(work % most);
      tile.group = work / most;
      tile.first_head = tile.group % head_groups() * tile_heads;
      tile.kv_head = tile.first_head / heads_per_kv_head();
      const std::int64_t begin = tile.group / head_groups() * tile_rows;
      const std::int64_t end = begin + tile_rows < rows ? begin + tile_rows : rows;
      // One sequence at a time.
      for (tile.first_row = begin; tile.first_row < end; tile.first_row += tile.row_count) {
        const RowPlace place = batch.rows[tile.first_row];
        tile.row_count = 1;
        while (tile.first_row + tile.row_count < end &&
               batch.rows[tile.first_row + tile.row_count].table == place.table)
          ++tile.row_count;
        if (!computes(place)) continue;
        tile.parts = tile.context_parts(most);
        if (tile.part >= tile.parts.count) continue;
        const AttendSizes sizes{tile_rows * tile_heads, static_cast<int>(cache.head_dim),
                                static_cast<int>(cache.value_dim)};
        attend(block, sizes, tile);
      }
    }
  }

 private:
  ACCORD_ON_DEVICE std::int64_t head_groups() const { return heads / tile_heads; }
  ACCORD_ON_DEVICE int most_of_row() const { return rows_of == RowsOf::kShortSequences ? parts_each(rows) : 1; }

  struct Tile {
    const PagedAttention& of;
    int part = 0;
    std::int64_t group = 0, first_head = 0, kv_head = 0, first_row = 0, row_count = 1;
    ContextParts parts{0, 1, 1};

    ACCORD_ON_DEVICE int queries() const { return static_cast<int>(row_count) * of.tile_heads; }
    ACCORD_ON_DEVICE std::int64_t row(int query) const { return first_row + query / of.tile_heads; }
    ACCORD_ON_DEVICE std::int64_t head(int query) const { return first_head + query % of.tile_heads; }
    ACCORD_ON_DEVICE ContextParts context_parts(int most) const {
      // A multiple of kPieceTokens, as without a window.
      const int first = of.first_seen(of.batch.rows[first_row].token) / kPieceTokens * kPieceTokens;
      return {first, of.batch.rows[first_row + row_count - 1].token + 1, most};
    }
    ACCORD_ON_DEVICE std::int64_t first_token() const { return parts.begin(part); }
    ACCORD_ON_DEVICE std::int64_t last_token() const { return parts.end(part); }
    ACCORD_ON_DEVICE const std::int32_t* table() const { return of.batch.tables + of.batch.rows[first_row].table; }
    ACCORD_ON_DEVICE HeadRow query(int query) const { return of.q.row(row(query), head(query)); }
    ACCORD_ON_DEVICE HeadRow key(std::int64_t token) const {
      const DeviceCacheLayer& layer = of.cache;
      const std::int64_t row = layer.row_of(table(), kv_head, token);
      return {layer.keys, layer.dtype, row * layer.head_dim,
              layer.dtype == DType::kInt8 ? layer.key_scales[row] : 1.0F};
    }
    ACCORD_ON_DEVICE HeadRow value(std::int64_t token) const {
      const DeviceCacheLayer& layer = of.cache;
      const std::int64_t row = layer.row_of(table(), kv_head, token);
      return {layer.values, layer.dtype, row * layer.value_stride(),
              layer.dtype == DType::kInt8 ? layer.value_scales[row] : 1.0F};
    }
    ACCORD_ON_DEVICE float score(int query, std::int64_t token, float product) const {
      const int own = of.batch.rows[row(query)].token;
      if (token < of.first_seen(own) || token > own) return -INFINITY;
      const float score = of.score(product);
      return of.slopes == nullptr ? score : score + of.slopes[head(query)] * static_cast<float>(token - own);
    }
    /// Returns the query's softmax total with its sink, which is counted in the first part.
    ACCORD_ON_DEVICE float total(const AttendMemory& memory, int query) const {
      const float total = memory.totals[query];
      return of.sinks == nullptr || part > 0 ? total : total + expf(of.sinks[head(query)] - memory.max_scores[query]);
    }
    ACCORD_ON_DEVICE void store(int query, int d, float x) const {
      device::store_float(of.output.data, of.output.dtype,
                          row(query) * of.output.row_stride + head(query) * of.output.head_stride + d, x);
    }
    template <typename Block>
    ACCORD_ON_DEVICE void store_results(Block& block, const AttendMemory& memory) const {
      const auto dim = static_cast<int>(of.cache.value_dim);
      if (parts.count == 1) {
        for (int i = block.thread(); i < queries() * dim; i += block.threads())
          store(i / dim, i % dim, memory.sums[i] / total(memory, i / dim));
        return;
      }
      PartResults results = of.results_of(group, of.most_of_row(), queries());
      results.parts = parts.count;
      results.queries = queries();
      for (int i = block.thread(); i < queries() * dim; i += block.threads())
        results.sums(part, i / dim)[i % dim] = memory.sums[i];
      for (int query = block.thread(); query < queries(); query += block.threads())
        results.total(part, query) = {total(memory, query), memory.max_scores[query]};
      finish_part(block, results, [&](int query, int d, float x) { store(query, d, x); });
    }
  };
};

/// output = softmax(scale q k^T + mask) v for tensors [batch, heads, length, dim]. The output is zero for a query
/// that sees no token.
struct WholeCall {
  enum class Mask : std::uint8_t { kNone, kAdditive, kBool };
  std::int64_t batch = 0, heads = 0, kv_heads = 0, q_len = 0, k_len = 0, head_dim = 0, value_dim = 0;
  HeadRows q, k, v, output;
  std::int64_t q_batch_stride = 0, k_batch_stride = 0, v_batch_stride = 0, output_batch_stride = 0;
  Mask mask_kind = Mask::kNone;
  Operand mask;  ///< strides: batch, head, query, key
  bool causal = false;
  float scale = 1.0F;

  ACCORD_ON_DEVICE int heads_per_kv_head() const { return static_cast<int>(heads / kv_heads); }
  /// Returns the number of tokens that a row may see, counted from the first.
  ACCORD_ON_DEVICE std::int64_t visible_tokens(std::int64_t row) const {
    return causal && row + 1 < k_len ? row + 1 : k_len;
  }
  ACCORD_ON_DEVICE std::int64_t mask_offset(std::int64_t in_batch, std::int64_t head, std::int64_t row) const {
    return in_batch * mask.strides[0] + head * mask.strides[1] + row * mask.strides[2];
  }
  /// Returns the score of a query and a key that the query may see, from their product. `offset`: where the query's
  /// part of the mask begins.
  ACCORD_ON_DEVICE float score(std::int64_t offset, std::int64_t token, float product) const {
    const float score = product * scale;
    if (mask_kind == Mask::kNone) return score;
    const std::int64_t at = offset + token * mask.strides[3];
    if (mask_kind == Mask::kAdditive) return score + device::load_float(mask.data, mask.dtype, at);
    return static_cast<const std::uint8_t*>(mask.data)[at] != 0 ? score : -INFINITY;
  }
};

/// Each block computes `tile_rows` rows of all query heads that share one key head.
struct WholeAttention : WholeCall {
  static constexpr const char* kName = "engine_whole_attention";
  static constexpr int kThreads = 256;
  int tile_rows = 1;

  template <typename Block>
  ACCORD_ON_DEVICE void operator()(Block& block) const {
    const std::int64_t tiles = (q_len + tile_rows - 1) / tile_rows, works = batch * kv_heads * tiles;
    const int group_heads = heads_per_kv_head();
    for (std::int64_t work = block.block(); work < works; work += block.blocks()) {
      const std::int64_t first = work % tiles * tile_rows, left = q_len - first;
      const Tile tile{*this,
                      group_heads,
                      work / tiles / kv_heads,
                      work / tiles % kv_heads,
                      first,
                      left < tile_rows ? left : tile_rows};
      attend(block, {tile_rows * group_heads, static_cast<int>(head_dim), static_cast<int>(value_dim)}, tile);
    }
  }

 private:
  struct Tile {
    const WholeAttention& of;
    int group_heads;
    std::int64_t batch, kv_head, first_row, row_count;

    ACCORD_ON_DEVICE int queries() const { return static_cast<int>(row_count) * group_heads; }
    ACCORD_ON_DEVICE std::int64_t row(int query) const { return first_row + query / group_heads; }
    ACCORD_ON_DEVICE std::int64_t head(int query) const { return kv_head * group_heads + query % group_heads; }
    ACCORD_ON_DEVICE std::int64_t first_token() const { return 0; }
    ACCORD_ON_DEVICE std::int64_t last_token() const { return of.visible_tokens(first_row + row_count - 1); }
    ACCORD_ON_DEVICE HeadRow query(int query) const {
      return of.q.row(row(query), head(query), batch * of.q_batch_stride);
    }
    ACCORD_ON_DEVICE HeadRow key(std::int64_t token) const {
      return of.k.row(token, kv_head, batch * of.k_batch_stride);
    }
    ACCORD_ON_DEVICE HeadRow value(std::int64_t token) const {
      return of.v.row(token, kv_head, batch * of.v_batch_stride);
    }
    ACCORD_ON_DEVICE float score(int query, std::int64_t token, float product) const {
      if (token >= of.visible_tokens(row(query))) return -INFINITY;
      return of.score(of.mask_offset(batch, head(query), row(query)), token, product);
    }
    template <typename Block>
    ACCORD_ON_DEVICE void store_results(Block& block, const AttendMemory& memory) const {
      const auto dim = static_cast<int>(of.value_dim);
      for (int i = block.thread(); i < queries() * dim; i += block.threads()) {
        const int query = i / dim;
        const float total = memory.totals[query];
        device::store_float(of.output.data, of.output.dtype,
                            batch * of.output_batch_stride + row(query) * of.output.row_stride +
                                head(query) * of.output.head_stride + i % dim,
                            total == 0.0F ? 0.0F : memory.sums[i] / total);
      }
    }
  };
};

}  // namespace accord::engine
