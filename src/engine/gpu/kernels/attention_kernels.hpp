#pragma once
// Attention over the paged cache and over tensors.

#include "engine/gpu/kernels/attend.hpp"
#include "engine/gpu/kernels/cache_kernels.hpp"
#include "engine/gpu/kernels/words.hpp"

namespace accord::engine {

/// Selects the rows of a call by their sequence: sequences with few rows in the call (short), as in decoding, or the
/// others (long), as in prompts.
enum class RowsOf : std::uint8_t { kShortSequences, kLongSequences };

/// output = softmax(scale q k^T) v for each row. A row sees the tokens of its sequence up to and including its own.
/// Those tokens are divided into `splits` parts; with more than one part, the partial results go to `partial` for
/// CombineSplits.
struct PagedCall {
  DeviceCacheLayer cache;
  BatchTables batch;
  std::int64_t rows = 0, heads = 0, window = 0;
  float scale = 1.0F, softcap = 0.0F;
  HeadRows q, output;
  RowsOf rows_of = RowsOf::kShortSequences;  ///< the rows to compute
  int few_rows = 1;                          ///< the most rows that a short sequence may have
  int splits = 1;
  /// [rows, heads, splits, value_dim + 2]: sums, total, maximum score. The sums are undefined where the total is 0.
  float* partial = nullptr;

  ACCORD_ON_DEVICE int heads_per_kv_head() const { return static_cast<int>(heads / cache.kv_heads); }
  ACCORD_ON_DEVICE bool computes(const RowPlace& place) const {
    return (place.rows <= few_rows) == (rows_of == RowsOf::kShortSequences);
  }
  /// Returns the score of a query and a key that the query sees, from their product.
  ACCORD_ON_DEVICE float score(float product) const {
    const float score = product * scale;
    return softcap > 0.0F ? softcap * tanhf(score / softcap) : score;
  }
};

/// Each block computes `tile_rows` rows, the query heads of one key head, and one of the parts. If tile_rows is 1,
/// the parts depend only on the position of the row's own token.
struct PagedAttention : PagedCall {
  static constexpr const char* kName = "engine_paged_attention";
  static constexpr int kThreads = 256;
  int tile_rows = 1;

  ACCORD_ON_DEVICE std::int64_t tiles() const { return (rows + tile_rows - 1) / tile_rows; }

  template <typename Block>
  ACCORD_ON_DEVICE void operator()(Block& block) const {
    const std::int64_t works = tiles() * cache.kv_heads * splits;
    for (std::int64_t work = block.block(); work < works; work += block.blocks()) {
      Tile tile{*this};
      tile.split = static_cast<int>(work % splits);
      tile.kv_head = work / splits % cache.kv_heads;
      const std::int64_t begin = work / splits / cache.kv_heads * tile_rows;
      const std::int64_t end = begin + tile_rows < rows ? begin + tile_rows : rows;
      // One sequence at a time.
      for (tile.first_row = begin; tile.first_row < end; tile.first_row += tile.row_count) {
        const RowPlace place = batch.rows[tile.first_row];
        tile.row_count = 1;
        while (tile.first_row + tile.row_count < end &&
               batch.rows[tile.first_row + tile.row_count].table == place.table)
          ++tile.row_count;
        if (!computes(place)) continue;
        const AttendSizes sizes{tile_rows * heads_per_kv_head(), static_cast<int>(cache.head_dim),
                                static_cast<int>(cache.value_dim)};
        attend(block, sizes, tile);
      }
    }
  }

 private:
  struct Tile {
    const PagedAttention& of;
    int split = 0;
    std::int64_t kv_head = 0, first_row = 0, row_count = 1;

    ACCORD_ON_DEVICE int queries() const { return static_cast<int>(row_count) * of.heads_per_kv_head(); }
    ACCORD_ON_DEVICE std::int64_t row(int query) const { return first_row + query / of.heads_per_kv_head(); }
    ACCORD_ON_DEVICE std::int64_t head(int query) const {
      return kv_head * of.heads_per_kv_head() + query % of.heads_per_kv_head();
    }
    ACCORD_ON_DEVICE std::int64_t chunk() const {
      const std::int64_t tokens = of.batch.rows[first_row + row_count - 1].token + std::int64_t{1};
      const std::int64_t each = (tokens + of.splits - 1) / of.splits;
      return (each + kPieceTokens - 1) / kPieceTokens * kPieceTokens;
    }
    ACCORD_ON_DEVICE std::int64_t first_token() const {
      const std::int64_t begin = split * chunk();
      if (of.window == 0) return begin;
      const std::int64_t seen = of.batch.rows[first_row].token + 1 - of.window;
      // A multiple of kPieceTokens, as without a window.
      const std::int64_t from = seen < 0 ? 0 : seen / kPieceTokens * kPieceTokens;
      return from > begin ? from : begin;
    }
    ACCORD_ON_DEVICE std::int64_t last_token() const {
      const std::int64_t tokens = of.batch.rows[first_row + row_count - 1].token + std::int64_t{1};
      const std::int64_t end = (split + 1) * chunk();
      return end < tokens ? end : tokens;
    }
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
      return {layer.values, layer.dtype, row * layer.value_dim,
              layer.dtype == DType::kInt8 ? layer.value_scales[row] : 1.0F};
    }
    ACCORD_ON_DEVICE float score(int query, std::int64_t token, float product) const {
      const std::int64_t own = of.batch.rows[row(query)].token;
      if (token > own || (of.window > 0 && token <= own - of.window)) return -INFINITY;
      return of.score(product);
    }
    template <typename Block>
    ACCORD_ON_DEVICE void store_results(Block& block, const AttendMemory& memory) const {
      const auto dim = static_cast<int>(of.cache.value_dim);
      for (int i = block.thread(); i < queries() * dim; i += block.threads()) {
        const int query = i / dim, d = i % dim;
        if (of.splits == 1) {
          device::store_float(of.output.data, of.output.dtype,
                              row(query) * of.output.row_stride + head(query) * of.output.head_stride + d,
                              memory.sums[i] / memory.totals[query]);
          continue;
        }
        float* const to = of.partial + ((row(query) * of.heads + head(query)) * of.splits + split) * (dim + 2);
        to[d] = memory.sums[i];
        if (d > 0) continue;
        to[dim] = memory.totals[query];
        to[dim + 1] = memory.max_scores[query];
      }
    }
  };
};

/// Combines the parts of a PagedCall into one result. A warp computes as many elements of a head as it has lanes; its
/// lanes share the work of computing the factors of the parts.
struct CombineSplits : PagedCall {
  static constexpr const char* kName = "engine_combine_splits";
  static constexpr int kThreads = 256;
  static constexpr bool kStartsEarly = true;

  template <typename Block>
  ACCORD_ON_DEVICE void operator()(Block& block) const {
    block.await_earlier();
    block.start_next();
    const int lanes = block.lanes(), lane = block.lane();
    const std::int64_t value_dim = cache.value_dim;
    const std::int64_t pieces = (value_dim + lanes - 1) / lanes, works = rows * heads * pieces;
    const auto warps = static_cast<std::int64_t>(block.stride()) / lanes;
    for (std::int64_t work = static_cast<std::int64_t>(block.first()) / lanes; work < works; work += warps) {
      const std::int64_t d = work % pieces * lanes + lane, head = work / pieces % heads, row = work / pieces / heads;
      if (!computes(batch.rows[row])) continue;
      const float* const parts = partial + (row * heads + head) * splits * (value_dim + 2);
      float max_score = -INFINITY, sum = 0.0F, total = 0.0F;
      for (int split = lane; split < splits; split += lanes) {
        const float score = parts[split * (value_dim + 2) + value_dim + 1];
        max_score = score > max_score ? score : max_score;
      }
      max_score = block.warp_max(max_score);
      for (int first = 0; first < splits; first += lanes) {
        const int count = splits - first < lanes ? splits - first : lanes;
        const float mine =
            lane < count ? factor_of(parts + (first + lane) * (value_dim + 2) + value_dim, max_score) : 0.0F;
        if (mine != 0.0F) total += mine * parts[(first + lane) * (value_dim + 2) + value_dim];
        ACCORD_UNROLLED_BY(8)
        for (int i = 0; i < count; ++i) {
          const float factor = block.from_lane(mine, i);
          if (factor != 0.0F && d < value_dim) sum += factor * parts[(first + i) * (value_dim + 2) + d];
        }
      }
      total = block.warp_sum(total);
      if (d < value_dim) {
        device::store_float(output.data, output.dtype, row * output.row_stride + head * output.head_stride + d,
                            sum / total);
      }
    }
  }

 private:
  /// `part`: its total and maximum score. Returns 0 for a part without sums, but never for one with a NaN.
  ACCORD_ON_DEVICE static float factor_of(const float* part, float max_score) {
    if (part[0] != part[0]) return part[0];
    return part[0] == 0.0F ? 0.0F : expf(part[1] - max_score);
  }
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
