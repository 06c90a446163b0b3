// Queries that share a key head (neighboring rows, and the query heads of a group) are processed together in tiles of
// up to eight. A tile walks the tokens in chunks of 256, aligned to the first token of the sequence:
//   scores: for 16 tokens at a time, the sum over head_dim of (16 keys' elements) * (the query's element);
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

#include "kernels/simd_targets.hpp"

// Highway's files must come in this order.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/attention/paged_attention.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
#include "kernels/half_simd.hpp"
#include "kernels/math_simd.hpp"
// clang-format on

#ifndef ACCORD_KERNELS_PAGED_ATTENTION_TILE
#define ACCORD_KERNELS_PAGED_ATTENTION_TILE
namespace accord::kernels {

constexpr std::int64_t kMaxQueries = 8;  // per tile
constexpr std::int64_t kChunkTokens = 256;

/// Up to eight queries of one key head: query i is row first_row + i / group and query head first_head + i % group.
/// Tokens are those of the call's part, counted from 0.
struct Tile {
  const PagedAttentionCall* call;
  const SequenceRows* rows;
  std::int64_t kv_head, first_row, first_head, group;
  std::int64_t queries;
  std::int64_t begin, end;  // tokens that any of its queries attends
  float* scores;            // [queries][kChunkTokens]
  float* q;                 // [queries][head_dim]
  float* output;            // [queries][value_width]
  float maximum[kMaxQueries];
  float sum[kMaxQueries];

  std::int64_t head_of(std::int64_t query) const { return first_head + query % group; }
  std::int64_t position_of(std::int64_t query) const { return rows->context + first_row + query / group; }
  std::int64_t tokens_before(std::int64_t position) const {
    const TokenPart& part = call->part;
    if (part.parts == 1) return position;
    const std::int64_t block = part.parts * part.tokens;
    return position / block * part.tokens +
           std::clamp<std::int64_t>(position % block - part.part * part.tokens, 0, part.tokens);
  }
  std::int64_t end_of(std::int64_t query) const { return tokens_before(position_of(query) + 1); }
  std::int64_t begin_of(std::int64_t query) const {
    return call->window > 0 ? tokens_before(std::max<std::int64_t>(0, position_of(query) + 1 - call->window)) : 0;
  }
  std::int64_t position_of_token(std::int64_t token) const {
    const TokenPart& part = call->part;
    if (part.parts == 1) return token;
    return (token / part.tokens * part.parts + part.part) * part.tokens + token % part.tokens;
  }
  // Tokens of the part in each block.
  std::int64_t block_tokens() const { return call->part.parts == 1 ? call->cache.block_tokens : call->part.tokens; }
  // Returns the place of `token` in its block of the cache.
  std::int64_t place_of(std::int64_t token) const {
    const TokenPart& part = call->part;
    return part.parts == 1 ? token % call->cache.block_tokens
                           : (part.part - part.first) * part.tokens + token % part.tokens;
  }
  // Returns the piece of the keys or the values that holds `token`.
  const std::byte* piece_of(const std::byte* memory, std::int64_t dim, std::int64_t token) const {
    const PagedCache& cache = call->cache;
    const std::int64_t block = rows->blocks[static_cast<std::size_t>(token / block_tokens())];
    return memory + (block * cache.kv_heads + kv_head) * cache.piece_bytes(dim);
  }
  // Returns the scales of the 16 tokens starting at `token`, for int8 elements.
  const float* scales_of(const std::byte* memory, std::int64_t dim, std::int64_t token) const {
    const std::byte* const codes = piece_of(memory, dim, token);
    return reinterpret_cast<const float*>(codes + call->cache.block_tokens * dim) + place_of(token);
  }
};

}  // namespace accord::kernels
#endif

HWY_BEFORE_NAMESPACE();
namespace accord::kernels::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using Floats = hn::CappedTag<float, kTokenGroup>;
using Vector = hn::Vec<Floats>;
constexpr std::size_t kLanes = hn::MaxLanes(Floats());
constexpr std::size_t kPieces = kTokenGroup / kLanes;

// Loads kLanes elements of the cache as floats.
HWY_INLINE Vector LoadCached(const float* from) { return hn::LoadU(Floats(), from); }
HWY_INLINE Vector LoadCached(const std::uint16_t* from) {
  return BFloat16ToFloat(Floats(), hn::LoadU(Halves<Floats>(), from));
}
HWY_INLINE Vector LoadCached(const std::int8_t* from) {
  const hn::Rebind<std::int8_t, Floats> codes;
  const hn::Rebind<std::int32_t, Floats> integers;
  return hn::ConvertTo(Floats(), hn::PromoteTo(integers, hn::LoadU(codes, from)));
}

template <typename T>
const T* Keys(const Tile& tile, std::int64_t token) {
  const PagedCache& cache = tile.call->cache;
  const std::int64_t in_block = tile.place_of(token) / kTokenGroup * kTokenGroup;
  return reinterpret_cast<const T*>(tile.piece_of(cache.keys, cache.head_dim, token)) + in_block * cache.head_dim;
}

template <typename T>
const T* Values(const Tile& tile, std::int64_t token) {
  const PagedCache& cache = tile.call->cache;
  const std::int64_t width = cache.value_width();
  return reinterpret_cast<const T*>(tile.piece_of(cache.values, width, token)) + tile.place_of(token) * width;
}

// Multiplies a query's scores or weights by the scales of their tokens. Covers the groups of the chunk from `begin`
// to `end`.
HWY_INLINE void ScaleByToken(const Tile& tile, const std::byte* memory, std::int64_t dim, std::int64_t query,
                             std::int64_t begin, std::int64_t end) {
  const Floats d;
  const std::int64_t chunk = begin / kChunkTokens * kChunkTokens;
  for (std::int64_t token = begin / kTokenGroup * kTokenGroup; token < end; token += kTokenGroup) {
    const float* scales = tile.scales_of(memory, dim, token);
    float* at = tile.scores + query * kChunkTokens + token - chunk;
    for (std::size_t i = 0; i < static_cast<std::size_t>(kTokenGroup); i += kLanes) {
      hn::StoreU(hn::Mul(hn::LoadU(d, at + i), hn::LoadU(d, scales + i)), d, at + i);
    }
  }
}

// Sums that are computed side by side, so that none waits for the latency of its own last product.
constexpr std::size_t kParallelSums = 8;

// Computes the scores of kQueries queries, starting at `first`, with kGroups groups of 16 tokens, starting at
// `token`.
template <typename T, std::size_t kQueries, std::size_t kGroups>
HWY_INLINE void ScoreGroups(const Tile& tile, std::int64_t first, std::int64_t token, std::int64_t at) {
  const Floats d;
  const std::int64_t dim = tile.call->cache.head_dim;
  const T* keys[kGroups];
  for (std::size_t group = 0; group < kGroups; ++group) {
    keys[group] = Keys<T>(tile, token + static_cast<std::int64_t>(group) * kTokenGroup);
  }
  const float* q = tile.q + first * dim;
  Vector sums[kGroups][kQueries][kPieces];
  for (auto& group : sums) {
    for (auto& query : group) {
      for (Vector& piece : query) piece = hn::Zero(d);
    }
  }
  for (std::int64_t i = 0; i < dim; ++i) {
    for (std::size_t group = 0; group < kGroups; ++group) {
      for (std::size_t piece = 0; piece < kPieces; ++piece) {
        const Vector k = LoadCached(keys[group] + i * kTokenGroup + static_cast<std::int64_t>(piece * kLanes));
        for (std::size_t query = 0; query < kQueries; ++query) {
          const Vector element = hn::Set(d, q[static_cast<std::int64_t>(query) * dim + i]);
          sums[group][query][piece] = hn::MulAdd(k, element, sums[group][query][piece]);
        }
      }
    }
  }
  for (std::size_t group = 0; group < kGroups; ++group) {
    for (std::size_t query = 0; query < kQueries; ++query) {
      float* scores = tile.scores + (first + static_cast<std::int64_t>(query)) * kChunkTokens + at +
                      static_cast<std::int64_t>(group) * kTokenGroup;
      for (std::size_t piece = 0; piece < kPieces; ++piece) {
        hn::StoreU(sums[group][query][piece], d, scores + piece * kLanes);
      }
    }
  }
}

// Updates kColumns vectors of the outputs, starting at element `i`: output[query] = output[query] * its factor + the
// sum over tokens [begin, end) of p * value.
template <typename T, std::size_t kQueries, std::size_t kColumns>
HWY_INLINE void AddColumns(const Tile& tile, std::int64_t first, std::int64_t begin, std::int64_t end,
                           const float* factors, std::int64_t i) {
  const Floats d;
  const std::int64_t width = tile.call->cache.value_width();
  const std::int64_t chunk = begin / kChunkTokens * kChunkTokens;
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
    const T* values = Values<T>(tile, token) + i;
    for (; token < stop; ++token, values += width) {
      const float* p = tile.scores + first * kChunkTokens + token - chunk;
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

// Scales and caps a query's scores of the `count` tokens from `chunk` on, hides the tokens that the query may not
// attend, and replaces the scores by p. Returns the factor for the sums of the previous chunks.
HWY_INLINE float SoftmaxChunk(Tile& tile, std::int64_t query, std::int64_t chunk, std::int64_t count) {
  const Floats d;
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
  HWY_ALIGN float lanes[kTokenGroup];
  for (std::size_t piece = 0; piece < kPieces; ++piece) hn::Store(sums[piece], d, lanes + piece * kLanes);
  for (std::size_t half = kTokenGroup / 2; half > 0; half /= 2) {
    for (std::size_t i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  }
  HWY_ALIGN float before[kTokenGroup] = {tile.maximum[query] - maximum};
  const float factor = tile.maximum[query] == never ? 0.0F : hn::GetLane(ExpNonPositive(d, hn::Load(d, before)));
  tile.maximum[query] = maximum;
  tile.sum[query] = tile.sum[query] * factor + lanes[0];
  return factor;
}

template <typename T, std::size_t kQueries>
void ScoreQueries(const Tile& tile, std::int64_t first, std::int64_t begin, std::int64_t end) {
  constexpr std::size_t kGroups = std::max<std::size_t>(kParallelSums / (kQueries * kPieces), 1);
  constexpr auto kStep = static_cast<std::int64_t>(kGroups) * kTokenGroup;
  const std::int64_t chunk = begin / kChunkTokens * kChunkTokens;
  std::int64_t token = begin / kTokenGroup * kTokenGroup;
  for (; token + kStep <= end; token += kStep) ScoreGroups<T, kQueries, kGroups>(tile, first, token, token - chunk);
  for (; token < end; token += kTokenGroup) ScoreGroups<T, kQueries, 1>(tile, first, token, token - chunk);
}

// Calls work(first query, number of queries as a constant) for groups of eight, four, two and one.
template <class Work>
HWY_INLINE void ByQueries(std::int64_t queries, Work work) {
  std::int64_t first = 0;
  if (kLanes == kTokenGroup && queries == 8) {
    work(first, std::integral_constant<std::size_t, 8>());
    return;
  }
  for (; first + 4 <= queries; first += 4) work(first, std::integral_constant<std::size_t, 4>());
  for (; first + 2 <= queries; first += 2) work(first, std::integral_constant<std::size_t, 2>());
  for (; first < queries; ++first) work(first, std::integral_constant<std::size_t, 1>());
}

template <typename T>
void AttendTileAs(Tile& tile) {
  for (std::int64_t chunk = tile.begin / kChunkTokens * kChunkTokens; chunk < tile.end; chunk += kChunkTokens) {
    const std::int64_t begin = std::max(chunk, tile.begin);
    const std::int64_t end = std::min(chunk + kChunkTokens, tile.end);
    ByQueries(tile.queries, [&](std::int64_t first, auto queries) {
      ScoreQueries<T, decltype(queries)::value>(tile, first, begin, end);
    });
    constexpr bool kScaled = std::is_same_v<T, std::int8_t>;
    const PagedCache& cache = tile.call->cache;
    float factors[kMaxQueries];
    for (std::int64_t query = 0; query < tile.queries; ++query) {
      float* scores = tile.scores + query * kChunkTokens;
      std::fill(scores, scores + begin / kTokenGroup * kTokenGroup - chunk, 0.0F);
      if constexpr (kScaled) ScaleByToken(tile, cache.keys, cache.head_dim, query, begin, end);
      factors[query] = SoftmaxChunk(tile, query, chunk, end - chunk);
      if constexpr (kScaled) ScaleByToken(tile, cache.values, cache.value_width(), query, begin, end);
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
  return static_cast<std::size_t>(kMaxQueries * (kChunkTokens + call.cache.head_dim + call.cache.value_width()));
}

void paged_attention(const PagedAttentionCall& call, const SequenceRows& rows, std::int64_t kv_head,
                     std::int64_t first_row, std::int64_t count, std::span<float> scratch) {
  const PagedCache& cache = call.cache;
  const std::int64_t group = call.heads / cache.kv_heads;
  // A group larger than a tile is split; a smaller one leaves room for more rows.
  for (std::int64_t in_group = 0; in_group < group; in_group += kMaxQueries) {
    const std::int64_t heads = std::min(group - in_group, kMaxQueries);
    const std::int64_t rows_at_once = kMaxQueries / heads;
    for (std::int64_t row = first_row; row < first_row + count; row += rows_at_once) {
      const std::int64_t tile_rows = std::min(rows_at_once, first_row + count - row);
      Tile tile{
          &call,   &rows,   kv_head, row, kv_head * group + in_group, heads, tile_rows * heads, 0, 0, scratch.data(),
          nullptr, nullptr, {},      {}};
      tile.q = tile.scores + kMaxQueries * kChunkTokens;
      tile.output = tile.q + kMaxQueries * cache.head_dim;
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
        std::copy(q, q + cache.head_dim, tile.q + query * cache.head_dim);
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
}

}  // namespace accord::kernels
#endif
