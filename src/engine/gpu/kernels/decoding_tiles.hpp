#pragma once
// Attention of a few rows over the paged cache on tensor cores, as when a language model decodes with several query
// heads per key head. Keys and values are read once, at the speed of memory.
//
// Each block has up to 16 queries (rows of one short sequence, each with the heads that share a key head) and one part
// of the tokens that they see; a sequence with more queries has several such tiles. The warps of a block take turns
// with groups of 16 tokens of the part. Each warp copies keys and values into its own ring of shared memory, several
// groups ahead, and synchronizes with no other warp until the end:
//   1. scores: queries times keys, summed in float32;
//   2. a softmax that is corrected whenever a larger score appears;
//   3. the softmax weights, rounded to bfloat16, times the values, summed in float32.
// Then the block adds up the sums of its warps, and the last block of a tile those of all parts.

#include "engine/gpu/kernels/cache_fragments.hpp"
#include "engine/gpu/kernels/heads_kernel.hpp"
#include "engine/gpu/kernels/tile_queries.hpp"

namespace accord::engine {

/// PagedCall over a cache of kCache, bfloat16 or int8, with queries and output of bfloat16 and heads of up to kMaxDim
/// elements. Codes of int8 are exact in bfloat16. The scale of a key multiplies its score, and that of a value
/// multiplies its softmax weight.
///
/// If `new_heads` has keys, the kernel also does that work: each block rotates its own queries, and the block that
/// computes the last part of a row's tokens first writes the row's key and value to the cache. REQUIRES then: every
/// sequence has one row, one block has all queries of a key head, and new_heads.has_words().
template <DType kCache, int kMaxDim>
struct DecodingTiles : PagedCall {
  static constexpr bool kIsCodes = kCache == DType::kInt8;
  static constexpr const char* name_of(const char* bfloat16, const char* int8) { return kIsCodes ? int8 : bfloat16; }
  static constexpr const char* kName =
      kMaxDim == 64    ? name_of("engine_decoding_tiles_64_bfloat16", "engine_decoding_tiles_64_int8")
      : kMaxDim == 96  ? name_of("engine_decoding_tiles_96_bfloat16", "engine_decoding_tiles_96_int8")
      : kMaxDim == 128 ? name_of("engine_decoding_tiles_128_bfloat16", "engine_decoding_tiles_128_int8")
                       : name_of("engine_decoding_tiles_256_bfloat16", "engine_decoding_tiles_256_int8");
  static constexpr int kThreads = 128, kLanes = device::kFragmentLanes;
  static constexpr bool kStartsEarly = true;
  static constexpr int kQueries = kQueriesOfSums;
  HeadsWork<DType::kBFloat16> new_heads = {};

  ACCORD_ON_DEVICE TileShape tile_shape() const { return TileShape(heads_per_kv_head(), kQueries); }
  /// Returns how many tiles the rows of a short sequence may need.
  ACCORD_ON_DEVICE int tiles_of_sequence() const {
    const int rows_each = tile_shape().rows_each;
    return has_single_rows ? 1 : (few_rows + rows_each - 1) / rows_each;
  }
  /// Returns the blocks' works if the rows belong to `sequences` sequences.
  ACCORD_ON_DEVICE std::int64_t works(std::int64_t sequences) const {
    const std::int64_t tiles = sequences * tiles_of_sequence();
    return tiles * cache.kv_heads * tile_shape().groups * parts_each(tiles);
  }
  static std::size_t shared_bytes(int most_parts) {
    constexpr int kWarps = kThreads / kLanes;
    constexpr std::size_t kQueryBytes = kQueries * Fragments::kQueryPitch * sizeof(Words);
    constexpr std::size_t kRingBytes = kWarps * kSlots * kSlotWords * sizeof(Words);
    constexpr std::size_t kSumBytes = kWarps * kQueries * (kMaxDim + 2) * sizeof(float);
    return kQueryBytes + std::max({kRingBytes, kSumBytes, PartResults::shared_bytes(kQueries, most_parts)});
  }

  template <typename Block>
  ACCORD_ON_DEVICE void operator()(Block& block) const {
    block.await_earlier();
    block.start_next();
    const int sequences = has_single_rows ? static_cast<int>(rows) : batch.sequence_count();
    const int tiles = tiles_of_sequence(), most = parts_each(std::int64_t{sequences} * tiles);
    const TileShape shape = tile_shape();
    const int rows_each = rows < shape.rows_each ? static_cast<int>(rows) : shape.rows_each;
    const std::int64_t all = works(sequences);
    for (std::int64_t work = block.block(); work < all; work += block.blocks()) {
      std::int64_t rest = work;
      const auto part = static_cast<int>(take_last(rest, most));
      PartResults results = results_of(rest, most, rows_each * shape.heads_each);
      const auto group = static_cast<int>(take_last(rest, shape.groups));
      const auto kv_head = static_cast<int>(take_last(rest, cache.kv_heads));
      const int before = static_cast<int>(take_last(rest, tiles)) * shape.rows_each;
      const auto sequence = static_cast<int>(rest);
      const int row = has_single_rows ? sequence : batch.first_row(sequence);
      const RowPlace place = batch.rows[row];
      const int left = place.rows - before;
      if (!computes(place) || left <= 0) continue;
      PagedTile tile{*this, kv_head, TileQueries(shape, group, kv_head, heads_per_kv_head())};
      tile.set_rows({place.token + before, place.table, place.rows}, row + before,
                    left < shape.rows_each ? left : shape.rows_each);
      const ContextParts parts(tile.first, tile.last, most);
      if (part >= parts.count) continue;
      results.parts = parts.count;
      results.queries = tile.queries();
      tile.first = parts.begin(part);
      tile.last = parts.end(part);
      attend(block, tile, results, part);
    }
  }

 private:
  using Fragments = CacheFragments<kCache, kMaxDim>;
  using Sums = device::Sums;
  static constexpr DType kDType = DType::kBFloat16;
  static constexpr int kSteps = kMaxDim / kTileDim;
  static constexpr int kGroup = 16;  ///< tokens that a warp computes at once
  static_assert(kPartStep % kGroup == 0, "a group belongs to one part");
  /// Slots of a ring, each with the keys or the values of one group. Two blocks or more fit on a multiprocessor of 227
  /// KiB, with 64 KiB or more being copied.
  static constexpr int kRowBytes = kMaxDim * (kIsCodes ? 1 : 2);
  static constexpr int kSlots = kRowBytes <= 64    ? 8
                                : kRowBytes <= 128 ? 6
                                : kRowBytes <= 192 ? 5
                                : kRowBytes <= 256 ? 4
                                                   : 3;
  static constexpr int kSlotWords = kGroup * Fragments::kPitch;
  static constexpr bool kQueriesInRegisters = kMaxDim <= 128;

  /// The scales of the keys and values of a group: a lane has those of token lane % kGroup.
  struct Scales {
    float key = 1.0F, value = 1.0F;
  };

  /// A warp's groups of tokens, and the copies of their keys and values into its ring.
  struct Ring {
    const DecodingTiles& of;
    const PagedTile& tile;
    Words* slots;
    int first, step;              ///< the warp's first token, and from group to group
    int groups = 0;               ///< the number of groups
    int started = 0;              ///< groups whose keys have been copied, or are being copied
    int to = 0, from = 0;         ///< the next slot to fill, and to read
    int row = -1, next_row = -1;  ///< of this lane's token (lane % kGroup) in the last and the next group to copy

    template <typename Block>
    ACCORD_ON_DEVICE Ring(Block& block, const DecodingTiles& call, const PagedTile& queries, Words* rings)
        : of(call), tile(queries) {
      const int warp = block.thread() / kLanes, warps = block.threads() / kLanes;
      slots = rings + warp * kSlots * kSlotWords;
      first = tile.first + warp * kGroup;
      step = warps * kGroup;
      groups = first < tile.last ? (tile.last - first + step - 1) / step : 0;
      next_row = row_of(block, 0);
      ACCORD_UNROLLED_BY(1)
      for (int slot = 0; slot + 1 < kSlots; ++slot) start(block, slot % 2 == 1);
    }

    ACCORD_ON_DEVICE int token(int group) const { return first + group * step; }
    /// Returns the row of this lane's token; -1 past the end.
    template <typename Block>
    ACCORD_ON_DEVICE int row_of(Block& block, int group) const {
      const int its = token(group) + block.lane() % kGroup;
      return its < tile.last ? tile.row_of(its) : -1;
    }
    /// Starts to copy keys or values into the next slot. Keys and values take turns.
    template <typename Block>
    ACCORD_ON_DEVICE void start(Block& block, bool are_values) {
      if (!are_values) {
        row = next_row;
        next_row = row_of(block, ++started);
      }
      if (started <= groups) {
        const void* const all = are_values ? of.cache.values : of.cache.keys;
        const auto dim = static_cast<int>(are_values ? of.cache.value_dim : of.cache.head_dim);
        Fragments::copy_rows(block, all, dim, row, slots + to * kSlotWords);
      }
      block.commit_copies();
      to = to + 1 == kSlots ? 0 : to + 1;
    }
    /// Returns the next slot, with copies complete, and starts another copy in the place of the previous one.
    template <typename Block>
    ACCORD_ON_DEVICE const Words* next(Block& block, bool are_values) {
      block.template wait_groups<kSlots - 2>();
      block.sync_warp();  // all lanes' copies are complete, and no lane reads the previous slot
      start(block, kSlots % 2 == 1 ? are_values : !are_values);
      const Words* const slot = slots + from * kSlotWords;
      from = from + 1 == kSlots ? 0 : from + 1;
      return slot;
    }
    template <typename Block>
    ACCORD_ON_DEVICE Scales scales_of(Block& block, int group) const {
      const int its = kIsCodes && group < groups ? row_of(block, group) : -1;
      if (its < 0) return {};
      return {of.cache.key_scales[its], of.cache.value_scales[its]};
    }
  };

  /// The results of a warp in shared memory.
  struct Merged {
    float* sums;                 ///< [warp][kQueries][value_dim]
    PartResults::Total* totals;  ///< [warp][kQueries]
    ACCORD_ON_DEVICE Merged(Words* memory, int warps, int value_dim)
        : sums(reinterpret_cast<float*>(memory)),
          totals(reinterpret_cast<PartResults::Total*>(sums + warps * kQueries * value_dim)) {}
  };

  template <typename Block>
  ACCORD_ON_DEVICE void attend(Block& block, const PagedTile& tile, const PartResults& results, int part) const {
    const auto head_dim = static_cast<int>(cache.head_dim), value_dim = static_cast<int>(cache.value_dim);
    auto* const queries = reinterpret_cast<Words*>(block.shared());
    Words* const rings = queries + kQueries * Fragments::kQueryPitch;
    block.sync();  // the previous contents may still be in use
    if (new_heads.keys.data != nullptr && part + 1 == results.parts) append(block, tile);
    load_queries(block, tile, queries);
    block.commit_copies();
    Ring ring(block, *this, tile, rings);
    block.template wait_groups<kSlots - 1>();
    block.sync();  // the queries have arrived

    device::Tiles in_registers[kQueriesInRegisters ? kSteps : 1] = {};
    if (kQueriesInRegisters) {
      ACCORD_UNROLLED
      for (int step = 0; step < kSteps; ++step)
        if (step * kTileDim < head_dim) in_registers[step] = Fragments::load_queries(block, queries, step);
    }
    const auto queries_of = [&](int step) {
      if constexpr (kQueriesInRegisters) {
        return in_registers[step];
      } else {
        return Fragments::load_queries(block, queries, step);
      }
    };
    TileSoftmax softmax;
    softmax.query = block.lane() / 4;
    const QueryRow earliest = tile.row(0), latest = tile.row(tile.queries() - 1);
    softmax.common = {latest.first, earliest.last < tile.last ? earliest.last : tile.last};
    Sums sums[kMaxDim / 8] = {};
    Scales next_scales = ring.scales_of(block, 0);
    ACCORD_UNROLLED_BY(1)
    for (int group = 0; group < ring.groups; ++group) {
      const Scales scales = next_scales;
      next_scales = ring.scales_of(block, group + 1);
      Sums scores[kGroup / 8] = {};
      const Words* const keys = ring.next(block, false);
      if (head_dim == kMaxDim) {
        Fragments::template multiply_keys<true>(block, queries_of, keys, head_dim, scores);
      } else {
        Fragments::template multiply_keys<false>(block, queries_of, keys, head_dim, scores);
      }
      if (kIsCodes) apply_scales(block, scales.key, scores);
      softmax.update(block, tile, ring.token(group), scores, sums);
      if (kIsCodes) apply_scales(block, scales.value, scores);
      const Words* const values = ring.next(block, true);
      const device::Tiles weights = tiles_of_weights<kDType>(scores[0], scores[1]);
      if (value_dim == kMaxDim) {
        Fragments::template add_values<true>(block, weights, values, value_dim, sums);
      } else {
        Fragments::template add_values<false>(block, weights, values, value_dim, sums);
      }
    }
    block.wait_copies();
    block.sync();  // no warp uses its ring any more
    const Merged merged(rings, block.threads() / kLanes, value_dim);
    merge_lanes(block, tile, softmax, sums, merged);
    block.sync();
    store_results(block, tile, merged, results, part);
  }

  /// Afterwards all threads of the block see the key and the value.
  template <typename Block>
  ACCORD_ON_DEVICE void append(Block& block, const PagedTile& tile) const {
    if (block.thread() < kLanes) new_heads.append(block, tile.tile_queries.first_row, tile.kv_head);
    block.sync();
  }

  template <typename Block>
  ACCORD_ON_DEVICE void load_queries(Block& block, const PagedTile& tile, Words* queries) const {
    const auto head_dim = static_cast<int>(cache.head_dim);
    const int words = head_dim / kElementsOfWords<kDType>;
    if (new_heads.heads > 0) return rotate_queries(block, tile, queries, words / 2);
    for (int i = block.thread(); i < kQueries * words; i += block.threads()) {
      const int query = i / words, word = i % words;
      const bool is_present = query < tile.queries();
      const Words* const from = words_of(q, tile.tile_queries.offset_in(q, is_present ? query : 0));
      block.copy_async(queries + query * Fragments::kQueryPitch + word, from + word, is_present);
    }
  }

  /// `half`: Words of half a head.
  template <typename Block>
  ACCORD_ON_DEVICE void rotate_queries(Block& block, const PagedTile& tile, Words* queries, int half) const {
    for (int i = block.thread(); i < kQueries * half; i += block.threads()) {
      const int query = i / half, unit = i % half;
      Words* const to = queries + query * Fragments::kQueryPitch;
      if (query >= tile.queries()) {
        to[unit] = to[unit + half] = {};
        continue;
      }
      new_heads.rotate_query(tile.tile_queries.row(query), tile.tile_queries.head(query), unit,
                             [&](std::int64_t d, const Words& words) { to[d / kElementsOfWords<kDType>] = words; });
    }
  }

  /// Multiplies the numbers of each token by its scale.
  template <typename Block>
  ACCORD_ON_DEVICE static void apply_scales(Block& block, float of_lane, Sums (&numbers)[kGroup / 8]) {
    ACCORD_UNROLLED
    for (int i = 0; i < kGroup / 8 * 2; ++i) {
      const float its = block.from_lane(of_lane, i / 2 * 8 + block.lane() % 4 * 2 + i % 2);
      numbers[i / 2].of[i % 2] *= its;
      numbers[i / 2].of[i % 2 + 2] *= its;
    }
  }

  template <typename Block>
  ACCORD_ON_DEVICE void merge_lanes(Block& block, const PagedTile& tile, const TileSoftmax& softmax,
                                    const Sums (&sums)[kMaxDim / 8], const Merged& merged) const {
    const int warp = block.thread() / kLanes, lane = block.lane(), value_dim = static_cast<int>(cache.value_dim);
    ACCORD_UNROLLED
    for (int i = 0; i < 2; ++i) {
      const int query = lane / 4 + i * 8;
      const float total = softmax.whole_total(block, i);
      if (query >= tile.queries()) continue;
      if (lane % 4 == 0) merged.totals[warp * kQueries + query] = {total, softmax.max_score(tile, i)};
      float* const to = merged.sums + (warp * kQueries + query) * value_dim;
      ACCORD_UNROLLED
      for (int step = 0; step < kSteps; ++step) {
        if (step * kTileDim < value_dim) Fragments::store_sums(block, sums, step, i, to);
      }
    }
  }

  /// Adds up the results of all warps, and stores the output or the result of a part.
  template <typename Block>
  ACCORD_ON_DEVICE void store_results(Block& block, const PagedTile& tile, const Merged& merged,
                                      const PartResults& results, int part) const {
    const int fours = results.value_dim / 4, warps = block.threads() / kLanes;
    for (int i = block.thread(); i < results.queries * fours; i += block.threads()) {
      const int query = i / fours, d = i % fours * 4;
      float max_score = -INFINITY;
      for (int warp = 0; warp < warps; ++warp)
        max_score = fmaxf(max_score, merged.totals[warp * kQueries + query].max_score);
      PartResults::Four sum{};
      PartResults::Total total{0.0F, max_score};
      for (int warp = 0; warp < warps; ++warp) {
        const PartResults::Total its = merged.totals[warp * kQueries + query];
        const float factor = its.factor(max_score);
        const auto from = *reinterpret_cast<const PartResults::Four*>(
            merged.sums + (warp * kQueries + query) * results.value_dim + d);
        total.sum = multiply_add(factor, its.sum, total.sum);
        ACCORD_UNROLLED
        for (int j = 0; j < 4; ++j) sum.of[j] = multiply_add(factor, from.of[j], sum.of[j]);
      }
      if (results.parts == 1) {
        const float factor = total.sum == 0.0F ? 0.0F : 1.0F / total.sum;
        std::uint32_t* const to = pairs_of(output, tile.tile_queries.offset_in(output, query) + d);
        to[0] = word_of_pair<kDType>(sum.of[0] * factor, sum.of[1] * factor);
        to[1] = word_of_pair<kDType>(sum.of[2] * factor, sum.of[3] * factor);
        continue;
      }
      *reinterpret_cast<PartResults::Four*>(results.sums(part, query) + d) = sum;
      if (d == 0) results.total(part, query) = total;
    }
    if (results.parts == 1) return;
    finish_part(block, results, [&](int query, int d, float x) {
      device::store_float(output.data, output.dtype, tile.tile_queries.offset_in(output, query) + d, x);
    });
  }
};

}  // namespace accord::engine
