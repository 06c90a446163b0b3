#pragma once
// Groups of 16 keys or values of the paged cache as operands of products on tensor cores.
//
// The sum over the elements of a head may have any order, and so may the columns of a result. Codes of int8 need no
// conversion in memory: the tiles that ldmatrix loads have four neighboring codes of a token in each word, where
// bfloat16 has two, so these four become the elements at lane % 4 * 2 + 0, 1, 8 and 9 of a step of 16. Queries are
// loaded in the same order. Transposed tiles have two neighboring codes of two tokens in each word. These become
// the same column of two tiles: the first has the even elements of a step, and the second the odd ones.

#include <bit>

#include "engine/gpu/kernels/attend_tiles.hpp"

namespace accord::engine {

/// Converts int8 codes from -127 to 127 to bfloat16: bytes `kFirst` and `kFirst` + kNext of `codes`, the first in the
/// lower half.
template <int kFirst, int kNext>
ACCORD_ON_DEVICE inline std::uint32_t pair_of_codes(std::uint32_t codes) {
#ifdef __CUDA_ARCH__
  // 0x43 followed by a byte below 0x80 is 128 plus that byte. With its sign bit the byte stands for itself minus 128.
  const std::uint32_t pair = __byte_perm(codes, 0, 0x4040 | kFirst | (kFirst + kNext) << 8);
  std::uint32_t low, sign, numbers;
  // (pair & mask) | 0x43004300 in one instruction each; the compiler would take two.
  asm("lop3.b32 %0, %1, 0x007F007F, 0x43004300, 0xEA;" : "=r"(low) : "r"(pair));
  asm("lop3.b32 %0, %1, 0x00800080, 0x43004300, 0xEA;" : "=r"(sign) : "r"(pair));
  asm("sub.rn.bf16x2 %0, %1, %2;" : "=r"(numbers) : "r"(low), "r"(sign));
  return numbers;
#else
  const auto number = [&](int byte) { return static_cast<float>(static_cast<std::int8_t>(codes >> (byte * 8))); };
  return word_of_pair<DType::kBFloat16>(number(kFirst), number(kFirst + kNext));
#endif
}

/// For a cache of kCache, bfloat16 or int8, and queries of bfloat16. All lanes of a warp call these functions together.
template <DType kCache, int kMaxDim>
class CacheFragments {
  using Tiles = device::Tiles;
  using TilePair = device::TilePair;
  using Sums = device::Sums;
  static constexpr bool kIsCodes = kCache == DType::kInt8;
  static constexpr int kEach = kIsCodes ? 16 : 8;  ///< elements of one of Words
  static constexpr int kLanes = device::kFragmentLanes, kGroup = 16;
  static constexpr DType kDType = DType::kBFloat16;

 public:
  /// Row pitches in Words, of a group and of queries. Odd, so that the eight rows that a tile reads at once are in
  /// different banks.
  static constexpr int kPitch = kMaxDim / kEach | 1;
  static constexpr int kQueryPitch = kMaxDim / kElementsOfWords<kDType> + 1;

  /// Starts to copy the heads of a group to shared memory. `row`: the cache row of token lane % 16 of the group; zeros
  /// take the place of a negative one. Shorter heads are filled with zeros, so that no lane takes a branch.
  template <typename Block>
  ACCORD_ON_DEVICE static void copy_rows(Block& block, const void* all, int dim, int row, Words* to) {
    constexpr int kWords = kMaxDim / kEach;
    constexpr int kWidth = static_cast<int>(std::bit_ceil(static_cast<unsigned>(kWords)));  // lanes per row
    constexpr int kAtOnce = kLanes / kWidth;
    const int words = dim / kEach, word = block.lane() % kWidth, first = block.lane() / kWidth;
    int rows[kGroup / kAtOnce];
    ACCORD_UNROLLED
    for (int i = 0; i < kGroup / kAtOnce; ++i) rows[i] = block.from_lane(row, first + i * kAtOnce);
    if (kWidth > kWords && word >= kWords) return;
    const WordRows column = WordRows(all, words * std::int64_t{sizeof(Words)}).column(word);
    Words* const mine = to + first * kPitch + word;
    ACCORD_UNROLLED
    for (int i = 0; i < kGroup / kAtOnce; ++i) {
      const int clamped = rows[i] < 0 ? 0 : rows[i];
      block.copy_async(mine + i * kAtOnce * kPitch, column.row(clamped), rows[i] >= 0 && word < words);
    }
  }

  /// Returns elements [16 step, 16 step + 16) of 16 queries, bfloat16, in the order of the keys.
  template <typename Block>
  ACCORD_ON_DEVICE static Tiles load_queries(Block& block, const Words* queries, int step) {
    const int lane = block.lane();
    if constexpr (!kIsCodes) {
      return block.load_tiles(queries + lane % 16 * kQueryPitch + step * 2 + lane / 16);
    } else {
      struct alignas(8) Four {
        std::uint32_t of[2];
      };
      const auto four_of = [&](int query) {
        return reinterpret_cast<const Four*>(queries + query * kQueryPitch + step * 2)[lane % 4];
      };
      const Four upper = four_of(lane / 4), lower = four_of(lane / 4 + 8);
      return {{upper.of[0], lower.of[0], upper.of[1], lower.of[1]}};
    }
  }

  /// scores += queries times keys. queries_of(step) returns what load_queries() does. kIsFull: heads have kMaxDim
  /// elements, so the products follow each other without checks of the size.
  template <bool kIsFull, typename Block, typename QueriesOf>
  ACCORD_ON_DEVICE static void multiply_keys(Block& block, const QueriesOf& queries_of, const Words* keys, int dim,
                                             Sums (&scores)[2]) {
    const int lane = block.lane();
    const Words* const mine = keys + (lane / 16 * 8 + lane % 8) * kPitch + lane / 8 % 2;
    ACCORD_UNROLLED
    for (int d = 0; d < kMaxDim; d += 2 * kEach) {  // two words of a row
      if (!kIsFull && d >= dim) continue;
      const Tiles loaded = block.load_tiles(mine + d / kEach);
      if constexpr (!kIsCodes) {
        const Tiles a = queries_of(d / kTileDim);
        block.template multiply<kDType>(a, {loaded.of[0], loaded.of[1]}, scores[0]);
        block.template multiply<kDType>(a, {loaded.of[2], loaded.of[3]}, scores[1]);
      } else {
        ACCORD_UNROLLED
        for (int half = 0; half < 2; ++half) {
          if (d + half * kTileDim >= (kIsFull ? kMaxDim : dim)) continue;
          const Tiles a = queries_of(d / kTileDim + half);
          block.template multiply<kDType>(a, quadruple_of(loaded.of[half]), scores[0]);
          block.template multiply<kDType>(a, quadruple_of(loaded.of[half + 2]), scores[1]);
        }
      }
    }
  }

  /// sums += weights times values.
  template <bool kIsFull, typename Block>
  ACCORD_ON_DEVICE static void add_values(Block& block, const Tiles& weights, const Words* values, int dim,
                                          Sums (&sums)[kMaxDim / 8]) {
    const int lane = block.lane();
    const Words* const mine = values + lane % 16 * kPitch + lane / 16;
    ACCORD_UNROLLED
    for (int d = 0; d < kMaxDim; d += 2 * kEach) {
      if (!kIsFull && d >= dim) continue;
      const Tiles loaded = block.load_transposed(mine + d / kEach);
      if constexpr (!kIsCodes) {
        block.template multiply<kDType>(weights, {loaded.of[0], loaded.of[1]}, sums[d / 8]);
        block.template multiply<kDType>(weights, {loaded.of[2], loaded.of[3]}, sums[d / 8 + 1]);
      } else {
        ACCORD_UNROLLED
        for (int half = 0; half < 2; ++half) {
          if (d + half * kTileDim >= (kIsFull ? kMaxDim : dim)) continue;
          const std::uint32_t above = loaded.of[half * 2], below = loaded.of[half * 2 + 1];
          const TilePair even{{pair_of_codes<0, 2>(above), pair_of_codes<0, 2>(below)}};
          const TilePair odd{{pair_of_codes<1, 2>(above), pair_of_codes<1, 2>(below)}};
          block.template multiply<kDType>(weights, even, sums[d / 8 + half * 2]);
          block.template multiply<kDType>(weights, odd, sums[d / 8 + half * 2 + 1]);
        }
      }
    }
  }

  /// Stores this lane's sums of elements [16 step, 16 step + 16) of query lane / 4 + 8 * `half` in the head at `to`.
  template <typename Block>
  ACCORD_ON_DEVICE static void store_sums(Block& block, const Sums (&sums)[kMaxDim / 8], int step, int half,
                                          float* to) {
    const Sums &first = sums[2 * step], &second = sums[2 * step + 1];
    const int i = half * 2;
    struct alignas(8) Pair {
      float of[2];
    };
    const auto store = [&](int d, float x, float y) { *reinterpret_cast<Pair*>(to + step * kTileDim + d) = {{x, y}}; };
    if constexpr (!kIsCodes) {
      store(block.lane() % 4 * 2, first.of[i], first.of[i + 1]);
      store(block.lane() % 4 * 2 + 8, second.of[i], second.of[i + 1]);
    } else {
      store(block.lane() % 4 * 4, first.of[i], second.of[i]);
      store(block.lane() % 4 * 4 + 2, first.of[i + 1], second.of[i + 1]);
    }
  }

 private:
  /// Converts four codes of a token.
  ACCORD_ON_DEVICE static TilePair quadruple_of(std::uint32_t codes) {
    return {{pair_of_codes<0, 1>(codes), pair_of_codes<2, 1>(codes)}};
  }
};

}  // namespace accord::engine
