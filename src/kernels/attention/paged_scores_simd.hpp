// The scores of a tile's queries: products with keys that are stored by elements, or as rows if they contain their
// values. Included once per Highway target; the guard below follows Highway's rule for such files.

#if defined(ACCORD_KERNELS_PAGED_SCORES_SIMD_HPP_) == defined(HWY_TARGET_TOGGLE)
#ifdef ACCORD_KERNELS_PAGED_SCORES_SIMD_HPP_
#undef ACCORD_KERNELS_PAGED_SCORES_SIMD_HPP_
#else
#define ACCORD_KERNELS_PAGED_SCORES_SIMD_HPP_
#endif

#include <hwy/highway.h>

#include <type_traits>

#include "kernels/attention/paged_tile.hpp"
#include "kernels/half_simd.hpp"

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

// Returns the row of a token in memory whose pieces have rows of `width` elements.
template <typename T>
const T* Row(const Tile& tile, const std::byte* memory, std::int64_t width, std::int64_t token) {
  return reinterpret_cast<const T*>(tile.piece_of(memory, width, token)) + tile.place_of(token) * width;
}

// Multiplies a query's scores or weights by the scales of their tokens. Covers the groups of the chunk from `begin`
// to `end`.
HWY_INLINE void ScaleByToken(const Tile& tile, const std::byte* memory, std::int64_t dim, std::int64_t query,
                             std::int64_t begin, std::int64_t end) {
  const Floats d;
  for (std::int64_t token = begin / kTokenGroup * kTokenGroup; token < end; token += kTokenGroup) {
    const float* scales = tile.scales_of(memory, dim, token);
    float* at = tile.scores + query * kChunkTokens + token - tile.chunk;
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

// Adds up 16 lanes as a balanced tree.
HWY_INLINE float TreeSum(float* lanes) {
  for (std::size_t half = kTokenGroup / 2; half > 0; half /= 2) {
    for (std::size_t i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  }
  return lanes[0];
}
HWY_INLINE float SumOfLanes(const Vector (&pieces)[kPieces]) {
  HWY_ALIGN float lanes[kTokenGroup];
  for (std::size_t piece = 0; piece < kPieces; ++piece) hn::Store(pieces[piece], Floats(), lanes + piece * kLanes);
  return TreeSum(lanes);
}

// Keys that are rows and are read together.
constexpr std::size_t kKeyRows = 4;

// Adds up the 16 lanes of each of kKeyRows sums, which follow each other in memory, in the order of TreeSum.
HWY_INLINE void SumLanes(float* lanes, float* sums) {
#if HWY_TARGET == HWY_SCALAR
  for (std::size_t i = 0; i < kKeyRows; ++i) sums[i] = TreeSum(lanes + i * kTokenGroup);
#else
  const hn::CappedTag<float, 4> d;
  const hn::Repartition<std::uint64_t, decltype(d)> pairs;
  hn::Vec<decltype(d)> fours[kKeyRows];
  for (hn::Vec<decltype(d)>& four : fours) {
    four = hn::Add(hn::Add(hn::Load(d, lanes), hn::Load(d, lanes + 8)),
                   hn::Add(hn::Load(d, lanes + 4), hn::Load(d, lanes + 12)));
    lanes += kTokenGroup;
  }
  const auto twos = [&](std::size_t i) {
    const auto a = hn::BitCast(pairs, fours[i]), b = hn::BitCast(pairs, fours[i + 1]);
    return hn::Add(hn::BitCast(d, hn::InterleaveLower(pairs, a, b)), hn::BitCast(d, hn::InterleaveUpper(pairs, a, b)));
  };
  const auto low = twos(0), high = twos(2);
  hn::StoreU(hn::Add(hn::ConcatEven(d, high, low), hn::ConcatOdd(d, high, low)), d, sums);
#endif
}

// Computes the scores of kQueries queries, starting at `first`, with kKeyRows keys that are rows of one block, starting
// at `token`. One piece of the lanes after the other, so that its sums fit into registers.
template <typename T, std::size_t kQueries>
HWY_INLINE void ScoreRows(const Tile& tile, std::int64_t first, std::int64_t token, std::int64_t at) {
  const Floats d;
  const std::int64_t width = tile.call->cache.key_width();
  const T* const keys = Row<T>(tile, tile.call->cache.keys, width, token);
  const float* const q = tile.q + first * width;
  HWY_ALIGN float lanes[kQueries][kKeyRows][kTokenGroup];
  for (std::size_t piece = 0; piece < kPieces; ++piece) {
    Vector sums[kKeyRows][kQueries];
    for (auto& of_token : sums) {
      for (Vector& sum : of_token) sum = hn::Zero(d);
    }
    for (auto i = static_cast<std::int64_t>(piece * kLanes); i < width; i += kTokenGroup) {
      Vector elements[kQueries];
      for (std::size_t query = 0; query < kQueries; ++query)
        elements[query] = hn::LoadU(d, q + static_cast<std::int64_t>(query) * width + i);
      for (std::size_t of = 0; of < kKeyRows; ++of) {
        const Vector k = LoadCached(keys + static_cast<std::int64_t>(of) * width + i);
        for (std::size_t query = 0; query < kQueries; ++query)
          sums[of][query] = hn::MulAdd(k, elements[query], sums[of][query]);
      }
    }
    for (std::size_t query = 0; query < kQueries; ++query) {
      for (std::size_t of = 0; of < kKeyRows; ++of) hn::Store(sums[of][query], d, lanes[query][of] + piece * kLanes);
    }
  }
  for (std::size_t query = 0; query < kQueries; ++query) {
    float* const scores = tile.scores + (first + static_cast<std::int64_t>(query)) * kChunkTokens + at;
    SumLanes(lanes[query][0], scores);
  }
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

template <typename T, std::size_t kQueries>
void ScoreQueries(const Tile& tile, std::int64_t first, std::int64_t begin, std::int64_t end) {
  constexpr std::size_t kGroups = std::max<std::size_t>(kParallelSums / (kQueries * kPieces), 1);
  constexpr auto kStep = static_cast<std::int64_t>(kGroups) * kTokenGroup;
  std::int64_t token = begin / kTokenGroup * kTokenGroup;
  for (; token + kStep <= end; token += kStep)
    ScoreGroups<T, kQueries, kGroups>(tile, first, token, token - tile.chunk);
  for (; token < end; token += kTokenGroup) ScoreGroups<T, kQueries, 1>(tile, first, token, token - tile.chunk);
}

// Computes the scores of all queries of the tile with keys that are rows. The queries read a few keys together.
template <typename T>
void ScoreRowsOfTile(const Tile& tile, std::int64_t begin, std::int64_t end) {
  const std::int64_t stop = round_up(end, kTokenGroup);
  for (std::int64_t token = begin / kTokenGroup * kTokenGroup; token < stop; token += kKeyRows) {
    std::int64_t first = 0;
    const auto score = [&](auto queries) {  // as many at once as have room for their sums in registers
      constexpr std::size_t kQueries = decltype(queries)::value;
      for (constexpr auto kStep = static_cast<std::int64_t>(kQueries); first + kStep <= tile.queries; first += kStep)
        ScoreRows<T, kQueries>(tile, first, token, token - tile.chunk);
    };
    score(std::integral_constant<std::size_t, 3>());
    score(std::integral_constant<std::size_t, 2>());
    score(std::integral_constant<std::size_t, 1>());
  }
}

}  // namespace accord::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
