// Converts packed weights to the words of a tile, in registers (format.hpp defines the order of inputs in a word).
// Codes become numbers without their scale, so they are exact in every form. Included once per Highway target (see
// half_simd.hpp).
//
// A source loads vectors of packed words, of outputs from `column` on, and returns kWords vectors of tile words from
// them, in the order of inputs.

#if defined(ACCORD_KERNELS_LINEAR_SOURCES_SIMD_HPP_) == defined(HWY_TARGET_TOGGLE)
#ifdef ACCORD_KERNELS_LINEAR_SOURCES_SIMD_HPP_
#undef ACCORD_KERNELS_LINEAR_SOURCES_SIMD_HPP_
#else
#define ACCORD_KERNELS_LINEAR_SOURCES_SIMD_HPP_
#endif

#include <hwy/highway.h>

#include <array>

#include "kernels/half_simd.hpp"
#include "kernels/linear/forms_simd.hpp"

HWY_BEFORE_NAMESPACE();
namespace accord::kernels::HWY_NAMESPACE {

using WordVector = hn::Vec<Words>;

/// A tile, or packed weights that already have the form of a tile.
struct TileSource {
  using Packed = WordVector;
  static constexpr int kWords = 1;
  explicit HWY_INLINE TileSource(const CodeValues& /*codes*/) {}
  HWY_INLINE WordVector Load(const std::uint32_t* words, std::int64_t word, std::int64_t width,
                             std::int64_t column) const {
    return hn::LoadU(Words(), words + word * width + column);
  }
  HWY_INLINE void Prefetch(const std::uint32_t* words, std::int64_t word, std::int64_t width,
                           std::int64_t column) const {
    hwy::Prefetch(words + word * width + column);
  }
  template <int kIndex>
  HWY_INLINE WordVector Get(WordVector packed) const {
    return packed;
  }
};

struct BFloat16ToFloats : TileSource {
  static constexpr int kWords = 2;
  explicit HWY_INLINE BFloat16ToFloats(const CodeValues& codes) : TileSource(codes) {}
  template <int kIndex>
  HWY_INLINE WordVector Get(WordVector packed) const {
    if constexpr (kIndex == 0) return hn::ShiftLeft<16>(packed);
    return hn::And(packed, hn::Set(Words(), 0xFFFF0000U));
  }
};

struct Float16ToFloats : TileSource {
  HWY_INLINE void Prefetch(const std::uint32_t* words, std::int64_t word, std::int64_t width,
                           std::int64_t column) const {
    hwy::Prefetch(reinterpret_cast<const std::uint16_t*>(words) + word * width + column);
  }
  explicit HWY_INLINE Float16ToFloats(const CodeValues& codes) : TileSource(codes) {}
  HWY_INLINE WordVector Load(const std::uint32_t* words, std::int64_t word, std::int64_t width,
                             std::int64_t column) const {
    const std::uint16_t* const halves = reinterpret_cast<const std::uint16_t*>(words) + word * width + column;
    return hn::BitCast(Words(), Float16ToFloat(Floats(), hn::LoadU(Halves<Floats>(), halves)));
  }
};

// Converts the kBits bits from kShift up, minus `zero`, to floats.
template <int kShift, int kBits>
HWY_INLINE WordVector CodeToFloat(WordVector words, hn::Vec<Floats> zero) {
  auto code = hn::ShiftRight<kShift>(words);
  if constexpr (kShift + kBits < 32) code = hn::And(code, hn::Set(Words(), (1U << kBits) - 1));
  return hn::BitCast(Words(), hn::Sub(hn::ConvertTo(Floats(), hn::BitCast(Integers(), code)), zero));
}

struct Int8ToFloats : TileSource {
  static constexpr int kWords = 4;
  hn::Vec<Floats> zero;
  explicit HWY_INLINE Int8ToFloats(const CodeValues& codes)
      : TileSource(codes), zero(hn::Set(Floats(), static_cast<float>(codes.zero))) {}
  template <int kIndex>
  HWY_INLINE WordVector Get(WordVector packed) const {
    return CodeToFloat<8 * (kIndex / 2) + 16 * (kIndex % 2), 8>(packed, zero);
  }
};

constexpr int shift_of_int4(int index) { return 4 * (index / 2) + 16 * (index % 2); }

#if HWY_TARGET == HWY_AVX3
// Looks the 16 numbers up in a table; the instruction uses the lowest four bits.
struct LookedUpFloats : TileSource {
  static constexpr int kWords = 8;
  hn::Vec<Floats> numbers;
  HWY_INLINE LookedUpFloats(const CodeValues& codes, hn::Vec<Floats> floats) : TileSource(codes), numbers(floats) {}
  template <int kIndex>
  HWY_INLINE WordVector Get(WordVector packed) const {
    const auto index = hn::ShiftRight<shift_of_int4(kIndex)>(packed);
    return hn::BitCast(Words(), hn::Vec<Floats>{_mm512_permutexvar_ps(index.raw, numbers.raw)});
  }
};

struct Int4ToFloats : LookedUpFloats {
  explicit HWY_INLINE Int4ToFloats(const CodeValues& codes)
      : LookedUpFloats(codes, hn::Sub(hn::Iota(Floats(), 0.0F), hn::Set(Floats(), static_cast<float>(codes.zero)))) {}
};

struct TableToFloats : LookedUpFloats {
  explicit HWY_INLINE TableToFloats(const CodeValues& codes)
      : LookedUpFloats(codes, hn::LoadU(Floats(), codes.table->numbers.data())) {}
};
#else
struct Int4ToFloats : TileSource {
  static constexpr int kWords = 8;
  hn::Vec<Floats> zero;
  explicit HWY_INLINE Int4ToFloats(const CodeValues& codes)
      : TileSource(codes), zero(hn::Set(Floats(), static_cast<float>(codes.zero))) {}
  template <int kIndex>
  HWY_INLINE WordVector Get(WordVector packed) const {
    return CodeToFloat<shift_of_int4(kIndex), 4>(packed, zero);
  }
};

#if HWY_TARGET == HWY_AVX2
// Looks a number up in both halves of the table by the lowest three bits, and chooses one by the fourth.
struct TableToFloats : TileSource {
  static constexpr int kWords = 8;
  hn::Vec<Floats> low, high;
  explicit HWY_INLINE TableToFloats(const CodeValues& codes)
      : TileSource(codes),
        low(hn::LoadU(Floats(), codes.table->numbers.data())),
        high(hn::LoadU(Floats(), codes.table->numbers.data() + 8)) {}
  template <int kIndex>
  HWY_INLINE WordVector Get(WordVector packed) const {
    constexpr int kShift = shift_of_int4(kIndex);
    const __m256i index = hn::ShiftRight<kShift>(packed).raw;
    const __m256 fourth_in_sign = hn::BitCast(Floats(), hn::ShiftLeft<28 - kShift>(packed)).raw;
    const __m256 number = _mm256_blendv_ps(_mm256_permutevar8x32_ps(low.raw, index),
                                           _mm256_permutevar8x32_ps(high.raw, index), fourth_in_sign);
    return hn::BitCast(Words(), hn::Vec<Floats>{number});
  }
};
#else
struct TableToFloats : TileSource {
  static constexpr int kWords = 8;
  const float* numbers;
  explicit HWY_INLINE TableToFloats(const CodeValues& codes)
      : TileSource(codes), numbers(codes.table->numbers.data()) {}
  template <int kIndex>
  HWY_INLINE WordVector Get(WordVector packed) const {
    const auto index = hn::And(hn::ShiftRight<shift_of_int4(kIndex)>(packed), hn::Set(Words(), 0xFU));
    return hn::BitCast(Words(), hn::GatherIndex(Floats(), numbers, hn::BitCast(Integers(), index)));
  }
};
#endif
#endif

// Replaces each byte of `nibbles`, which is below 16, by that byte of `table`.
HWY_INLINE WordVector LookUpBytes(const std::array<std::uint8_t, 16>& table, WordVector nibbles) {
#if HWY_TARGET == HWY_SCALAR
  const std::uint32_t word = hn::GetLane(nibbles);
  std::uint32_t found = 0;
  for (int byte = 0; byte < 32; byte += 8) found |= std::uint32_t{table[word >> byte & 0xF]} << byte;
  return hn::Set(Words(), found);
#else
  const hn::Repartition<std::uint8_t, Words> d;
  return hn::BitCast(Words(), hn::TableLookupBytes(hn::LoadDup128(d, table.data()), hn::BitCast(d, nibbles)));
#endif
}

// Pairs of bfloat16 in the words of a tile. Bytes of the packed word hold inputs 0 4 1 5 in their lower halves, and
// 2 6 3 7 in their upper ones.
struct TableToPairs : TileSource {
  static constexpr int kWords = 4;
  const TableValues& table;
  explicit HWY_INLINE TableToPairs(const CodeValues& codes) : TileSource(codes), table(*codes.table) {}
  template <int kIndex>
  HWY_INLINE WordVector Get(WordVector packed) const {
    const auto nibbles = hn::And(hn::ShiftRight<4 * (kIndex % 2)>(packed), hn::Set(Words(), 0x0F0F0F0FU));
    const auto low = LookUpBytes(table.low, nibbles), high = LookUpBytes(table.high, nibbles);
    const auto of_even = hn::Set(Words(), 0x00FF00FFU);
    if constexpr (kIndex < 2) return hn::Or(hn::And(low, of_even), hn::ShiftLeft<8>(hn::And(high, of_even)));
    return hn::Or(hn::And(hn::ShiftRight<8>(low), of_even), hn::AndNot(of_even, high));
  }
};

// Returns the low four bits of each byte, then the high ones. rows.cpp orders its inputs to match.
struct Int4ToBytes : TileSource {
  static constexpr int kWords = 2;
  explicit HWY_INLINE Int4ToBytes(const CodeValues& codes) : TileSource(codes) {}
  template <int kIndex>
  HWY_INLINE WordVector Get(WordVector packed) const {
    return hn::And(hn::ShiftRight<4 * kIndex>(packed), hn::Set(Words(), 0x0F0F0F0FU));
  }
};

// Codes of two inputs in the halves of a word, which matches the packed order.
template <int kBits>
struct CodesToHalves : TileSource {
  static constexpr int kWords = 16 / kBits;
  explicit HWY_INLINE CodesToHalves(const CodeValues& codes) : TileSource(codes) {}
  template <int kIndex>
  HWY_INLINE WordVector Get(WordVector packed) const {
#if HWY_TARGET != HWY_SCALAR
    if constexpr (kIndex + 1 == kWords) {  // no bits remain above these
      const hn::Repartition<std::uint16_t, Words> d;
      return hn::BitCast(Words(), hn::ShiftRight<kBits * kIndex>(hn::BitCast(d, packed)));
    }
#endif
    return hn::And(hn::ShiftRight<kBits * kIndex>(packed), hn::Set(Words(), 0x10001U * ((1U << kBits) - 1)));
  }
};

/// Loads a vector of scales of type float, float16 or int8.
template <DType kType>
HWY_INLINE hn::Vec<Floats> LoadScale(const std::byte* scales, std::int64_t at) {
  const Floats d;
  if constexpr (kType == DType::kInt8) {
    const hn::Rebind<std::int8_t, Floats> bytes;
    const auto scale = hn::LoadU(bytes, reinterpret_cast<const std::int8_t*>(scales) + at);
    return hn::ConvertTo(d, hn::PromoteTo(Integers(), scale));
  } else if constexpr (kType == DType::kFloat16) {
    return Float16ToFloat(d, hn::LoadU(Halves<Floats>(), reinterpret_cast<const std::uint16_t*>(scales) + at));
  } else {
    return hn::LoadU(d, reinterpret_cast<const float*>(scales) + at);
  }
}

}  // namespace accord::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
