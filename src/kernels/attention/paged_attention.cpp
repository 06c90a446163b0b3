// Queries that share a key head (neighboring rows, and the query heads of a group) are processed together in tiles of
// up to eight. A tile walks the tokens in chunks of 256 (64 where values are in keys, which are large), aligned to the
// first token of the sequence:
//   scores: for 16 tokens at a time, the sum over head_dim of (16 keys' elements) * (the query's element). Where values
//   are in keys, a key is a row: for each token, sums over every 16th element, in 16 lanes, which are added as a tree;
//   multiply by `scale` (int8 keys first by their own scales), cap, add the bias of the distance, and set -infinity
//   where a query may not attend;
//   maximum m' of this chunk and the previous ones; p = exp(score - m'), summed in 16 lanes;
//   output: the previous output times exp(m - m'), plus the sum over the tokens of p * value, in token order. For
//   int8 values, p is first multiplied by their scales.
// At the end each row is divided by its sum. A sink is a score that was there before the first chunk. Every number is
// computed by the same operations in the same order, whichever queries are in the tile. Vectors are treated as 16 lanes
// on all instruction sets, in one, two or four pieces.
#include "kernels/attention/paged_attention.hpp"

#include <algorithm>
#include <type_traits>

#include "kernels/attention/paged_tile.hpp"
#include "kernels/simd_targets.hpp"

// Highway's files must come in this order.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/attention/paged_attention.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
#include "kernels/attention/paged_scores_simd.hpp"
#include "kernels/math_simd.hpp"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace accord::kernels::HWY_NAMESPACE {

// Updates kColumns vectors of the outputs, starting at element `i`: output[query] = output[query] * its factor + the
// sum over tokens [begin, end) of p * value.
template <typename T, std::size_t kQueries, std::size_t kColumns>
HWY_INLINE void AddColumns(const Tile& tile, std::int64_t first, std::int64_t begin, std::int64_t end,
                           const float* factors, std::int64_t i) {
  const Floats d;
  const PagedCache& cache = tile.call->cache;
  const bool in_keys = cache.value_place == ValuePlace::kInKeys;
  const std::int64_t width = cache.value_width(), row_width = in_keys ? cache.key_width() : width;
  const std::byte* const memory = in_keys ? cache.keys : cache.values;
  const std::int64_t block_tokens = tile.block_tokens();
  float* const outputs = tile.output + first * width + i;
  Vector sums[kQueries][kColumns];
  for (std::size_t query = 0; query < kQueries; ++query) {
    const Vector factor = hn::Set(d, factors[query]);
    for (std::size_t column = 0; column < kColumns; ++column) {
      const float* output = outputs + static_cast<std::int64_t>(query) * width + column * kLanes;
      sums[query][column] = hn::Mul(hn::LoadU(d, output), factor);
    }
  }
  for (std::int64_t token = begin; token < end;) {
    const std::int64_t stop = std::min(end, (token / block_tokens + 1) * block_tokens);
    const T* values = Row<T>(tile, memory, row_width, token) + i;
    for (; token < stop; ++token, values += row_width) {
      const float* p = tile.scores + first * kChunkTokens + token - tile.chunk;
      for (std::size_t column = 0; column < kColumns; ++column) {
        const Vector v = LoadCached(values + column * kLanes);
        for (std::size_t query = 0; query < kQueries; ++query) {
          sums[query][column] =
              hn::MulAdd(v, hn::Set(d, p[static_cast<std::int64_t>(query) * kChunkTokens]), sums[query][column]);
        }
      }
    }
  }
  for (std::size_t query = 0; query < kQueries; ++query) {
    for (std::size_t column = 0; column < kColumns; ++column) {
      hn::StoreU(sums[query][column], d, outputs + static_cast<std::int64_t>(query) * width + column * kLanes);
    }
  }
}

template <typename T, std::size_t kQueries>
void AddValues(const Tile& tile, std::int64_t first, std::int64_t begin, std::int64_t end, const float* factors) {
  constexpr std::size_t kColumns = kParallelSums / kQueries;
  constexpr auto kStep = static_cast<std::int64_t>(kColumns * kLanes);
  const std::int64_t width = tile.call->cache.value_width();
  std::int64_t i = 0;
  for (; i + kStep <= width; i += kStep) AddColumns<T, kQueries, kColumns>(tile, first, begin, end, factors, i);
  for (; i < width; i += kLanes) AddColumns<T, kQueries, 1>(tile, first, begin, end, factors, i);
}

// Adds the bias of its distance to each of the `count` scores of a query, whose first token is number `token`.
HWY_INLINE void AddBiases(const Tile& tile, std::int64_t query, std::int64_t token, std::int64_t count, float* scores) {
  const PagedAttentionCall& call = *tile.call;
  const float* const biases = call.biases + tile.head_of(query) * call.distances;
  const std::int64_t distance = tile.position_of(query) - tile.position_of_token(token);
  for (std::int64_t i = 0; i < count; ++i)
    scores[i] += biases[std::clamp<std::int64_t>(distance - i, 0, call.distances - 1)];
}

// Scales and caps a query's scores of the first `count` tokens of the chunk, hides the tokens that the query may not
// attend, and replaces the scores by p. Returns the factor for the sums of the previous chunks.
HWY_INLINE float SoftmaxChunk(Tile& tile, std::int64_t query, std::int64_t count) {
  const Floats d;
  const std::int64_t chunk = tile.chunk;
  const PagedAttentionCall& call = *tile.call;
  float* scores = tile.scores + query * kChunkTokens;
  const std::int64_t groups = round_up(count, kTokenGroup);
  for (std::int64_t i = 0; i < groups; i += kLanes) {
    Vector s = hn::Mul(hn::LoadU(d, scores + i), hn::Set(d, call.scale));
    if (call.softcap > 0.0F) {
      s = hn::Mul(TanhOfAny(d, hn::Div(s, hn::Set(d, call.softcap))), hn::Set(d, call.softcap));
    }
    if (call.slopes != nullptr) {
      const auto distance = static_cast<float>(tile.position_of_token(chunk + i) - tile.position_of(query));
      s = hn::MulAdd(hn::Iota(d, distance), hn::Set(d, call.slopes[tile.head_of(query)]), s);
    }
    hn::StoreU(s, d, scores + i);
    if (call.biases != nullptr) AddBiases(tile, query, chunk + i, kLanes, scores + i);
  }
  const float never = -__builtin_inff();
  const std::int64_t first = std::clamp<std::int64_t>(tile.begin_of(query) - chunk, 0, groups);
  const std::int64_t last = std::clamp<std::int64_t>(tile.end_of(query) - chunk, 0, groups);
  std::fill(scores, scores + first, never);
  std::fill(scores + last, scores + groups, never);
  const float maximum = std::max(tile.maximum[query], MaxOfRow(d, scores, static_cast<std::size_t>(groups)));
  if (maximum == never && first >= last) {  // nothing attended so far
    std::fill(scores, scores + groups, 0.0F);
    return 1.0F;
  }
  Vector sums[kPieces];
  for (Vector& piece : sums) piece = hn::Zero(d);
  for (std::int64_t i = 0; i < groups; i += kTokenGroup) {
    for (std::size_t piece = 0; piece < kPieces; ++piece) {
      float* at = scores + i + piece * kLanes;
      const Vector p = ExpNonPositive(d, hn::Sub(hn::LoadU(d, at), hn::Set(d, maximum)));
      hn::StoreU(p, d, at);
      sums[piece] = hn::Add(sums[piece], p);
    }
  }
  HWY_ALIGN float before[kTokenGroup] = {tile.maximum[query] - maximum};
  const float factor = tile.maximum[query] == never ? 0.0F : hn::GetLane(ExpNonPositive(d, hn::Load(d, before)));
  tile.maximum[query] = maximum;
  tile.sum[query] = tile.sum[query] * factor + SumOfLanes(sums);
  return factor;
}

template <typename T>
void AttendTileAs(Tile& tile) {
  const PagedCache& cache = tile.call->cache;
  const bool in_keys = cache.value_place == ValuePlace::kInKeys;
  const std::int64_t size = in_keys ? kRowChunkTokens : kChunkTokens;
  for (tile.chunk = tile.begin / size * size; tile.chunk < tile.end; tile.chunk += size) {
    const std::int64_t begin = std::max(tile.chunk, tile.begin);
    const std::int64_t end = std::min(tile.chunk + size, tile.end);
    if (in_keys) {
      ScoreRowsOfTile<T>(tile, begin, end);
    } else {
      ByQueries(tile.queries, [&](std::int64_t first, auto queries) {
        ScoreQueries<T, decltype(queries)::value>(tile, first, begin, end);
      });
    }
    constexpr bool kScaled = std::is_same_v<T, std::int8_t>;
    float factors[kMaxQueries];
    for (std::int64_t query = 0; query < tile.queries; ++query) {
      float* scores = tile.scores + query * kChunkTokens;
      std::fill(scores, scores + begin / kTokenGroup * kTokenGroup - tile.chunk, 0.0F);
      const auto scale_by_keys = [&] { ScaleByToken(tile, cache.keys, cache.key_width(), query, begin, end); };
      if constexpr (kScaled) scale_by_keys();
      factors[query] = SoftmaxChunk(tile, query, end - tile.chunk);
      if constexpr (kScaled) {
        if (in_keys) {
          scale_by_keys();
        } else {
          ScaleByToken(tile, cache.values, cache.value_width(), query, begin, end);
        }
      }
    }
    ByQueries(tile.queries, [&](std::int64_t first, auto queries) {
      AddValues<T, decltype(queries)::value>(tile, first, begin, end, factors + first);
    });
  }
}

void AttendTile(Tile& tile) {
  switch (tile.call->cache.dtype) {
    case DType::kFloat32: return AttendTileAs<float>(tile);
    case DType::kInt8: return AttendTileAs<std::int8_t>(tile);
    default: return AttendTileAs<std::uint16_t>(tile);
  }
}

}  // namespace accord::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace accord::kernels {

HWY_EXPORT(AttendTile);

std::size_t paged_attention_scratch(const PagedAttentionCall& call) {
  return static_cast<std::size_t>(kMaxQueries * (kChunkTokens + call.cache.key_width() + call.cache.value_width()));
}

std::int64_t head_sets(const PagedAttentionCall& call) {
  return quotient_up(call.heads / call.cache.kv_heads, kMaxQueries);
}

void paged_attention(const PagedAttentionCall& call, const SequenceRows& rows, const PagedAttentionPart& part,
                     std::span<float> scratch) {
  const PagedCache& cache = call.cache;
  const std::int64_t group = call.heads / cache.kv_heads, kv_head = part.kv_head, width = cache.key_width();
  // A group larger than a tile is split; a smaller one leaves room for more rows.
  const std::int64_t in_group = part.head_set * kMaxQueries, heads = std::min(group - in_group, kMaxQueries);
  const std::int64_t rows_at_once = kMaxQueries / heads, end_row = part.first_row + part.rows;
  for (std::int64_t row = part.first_row; row < end_row; row += rows_at_once) {
    const std::int64_t tile_rows = std::min(rows_at_once, end_row - row);
    Tile tile{.call = &call,
              .rows = &rows,
              .kv_head = kv_head,
              .first_row = row,
              .first_head = kv_head * group + in_group,
              .group = heads,
              .queries = tile_rows * heads,
              .scores = scratch.data()};
    tile.q = tile.scores + kMaxQueries * kChunkTokens;
    tile.output = tile.q + kMaxQueries * width;
    tile.begin = tile.begin_of(0);
    tile.end = tile.end_of(tile.queries - 1);
    std::fill(tile.maximum, tile.maximum + kMaxQueries, -__builtin_inff());
    for (std::int64_t query = 0; query < tile.queries && call.sinks != nullptr; ++query) {
      tile.maximum[query] = call.sinks[tile.head_of(query)];
      tile.sum[query] = 1.0F;
    }
    std::fill(tile.output, tile.output + tile.queries * cache.value_width(), 0.0F);
    for (std::int64_t query = 0; query < tile.queries; ++query) {
      const float* q =
          call.q.data + (row + query / heads) * call.q.row_stride + tile.head_of(query) * call.q.head_stride;
      float* const to = tile.q + query * width;
      std::fill(std::copy(q, q + cache.head_dim, to), to + width, 0.0F);
    }
    HWY_DYNAMIC_DISPATCH(AttendTile)(tile);
    for (std::int64_t query = 0; query < tile.queries; ++query) {
      const float* from = tile.output + query * cache.value_width();
      float* to = call.output.data + (row + query / heads) * call.output.row_stride +
                  tile.head_of(query) * call.output.head_stride;
      if (call.is_partial) {
        std::copy(from, from + cache.value_dim, to);
        to[cache.value_dim] = tile.maximum[query];
        to[cache.value_dim + 1] = tile.sum[query];
      } else {
        for (std::int64_t i = 0; i < cache.value_dim; ++i) to[i] = from[i] / tile.sum[query];
      }
    }
  }
}

}  // namespace accord::kernels
#endif
