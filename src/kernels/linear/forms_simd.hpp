// Forms: what a word of a tile and of a row contains, and how their products are accumulated. This file has the forms
// that every Highway target supports.

#if defined(ACCORD_KERNELS_LINEAR_FORMS_SIMD_HPP_) == defined(HWY_TARGET_TOGGLE)
#ifdef ACCORD_KERNELS_LINEAR_FORMS_SIMD_HPP_
#undef ACCORD_KERNELS_LINEAR_FORMS_SIMD_HPP_
#else
#define ACCORD_KERNELS_LINEAR_FORMS_SIMD_HPP_
#endif

#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include "kernels/linear/panel_kernels.hpp"

HWY_BEFORE_NAMESPACE();
namespace accord::kernels::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using Floats = hn::ScalableTag<float>;
using Words = hn::RebindToUnsigned<Floats>;
using Integers = hn::RebindToSigned<Floats>;

// Sizes of the register block, in rows times vectors. Together with its weights and an input it uses 30 of 32
// registers, or 15 of 16. A single row needs many vectors, so that its sums do not wait for each other. If weights
// are unpacked on the fly, a block has up to 4 rows, or up to 8 rows with half as many vectors if unpacking is
// expensive.
#if ACCORD_SANITIZED || HWY_TARGET == HWY_SCALAR
constexpr int kMaxTileRows = 2, kMaxPackedRows = 2;  // each size takes long to compile
constexpr int vectors_of_block(int /*rows*/, int /*max_rows*/) { return 2; }
constexpr int fewer_vectors(int /*vectors*/) { return 0; }
#elif HWY_TARGET == HWY_AVX3
constexpr int kMaxTileRows = 6, kMaxPackedRows = 4;
constexpr int vectors_of_block(int rows, int max_rows) { return max_rows <= kMaxTileRows || rows <= 4 ? 4 : 2; }
constexpr int fewer_vectors(int vectors) { return vectors / 2; }  // for narrow panels
#else
constexpr int kMaxTileRows = HWY_TARGET == HWY_SSE4 ? 4 : 6, kMaxPackedRows = HWY_TARGET == HWY_SSE4 ? 2 : 4;
constexpr int vectors_of_block(int rows, int /*max_rows*/) { return rows == 1 ? 8 : rows == 2 ? 4 : 2; }
constexpr int fewer_vectors(int vectors) { return vectors > 2 ? vectors / 2 : 0; }
#endif

// Whether a single row leaves its packed words in memory and loads them one vector at a time. On targets other than
// AVX-512 its sums take too many registers to keep the words there as well.
constexpr bool kVectorByVector = HWY_TARGET != HWY_AVX3;
// vectors per 64-byte cache line
constexpr int kVectorsOfLine = HWY_TARGET == HWY_AVX3 ? 1 : HWY_TARGET == HWY_AVX2 ? 2 : 4;

struct FloatForm {
  using Sum = hn::Vec<Floats>;
  using Weight = hn::Vec<Floats>;
  static HWY_INLINE Weight WeightOf(hn::Vec<Words> words) { return hn::BitCast(Floats(), words); }
  static HWY_INLINE Weight InputOf(hn::Vec<Words> words) { return hn::BitCast(Floats(), words); }
  static HWY_INLINE Sum MulAdd(Sum sum, Weight weights, Weight input) { return hn::MulAdd(weights, input, sum); }
  /// The initial value of the sums of a group, and their conversion to floats.
  static HWY_INLINE Sum Start(const RowGroup&, int) { return hn::Zero(Floats()); }
  static HWY_INLINE hn::Vec<Floats> ToFloat(Sum sum) { return sum; }
  static HWY_INLINE hn::Vec<Floats> Scaled(hn::Vec<Floats> scale, const RowGroup&) { return scale; }
};

// Pairs of bfloat16, multiplied as floats.
struct FloatPairsForm : FloatForm {
  // GCC would compile implicit constructors without the instructions of vectors on aarch64.
  struct Pair {
    hn::Vec<Floats> low, high;
    HWY_INLINE Pair() {}
    HWY_INLINE Pair(hn::Vec<Floats> even, hn::Vec<Floats> odd) : low(even), high(odd) {}
  };
  using Weight = Pair;
  static HWY_INLINE Pair WeightOf(hn::Vec<Words> words) {
    return {hn::BitCast(Floats(), hn::ShiftLeft<16>(words)),
            hn::BitCast(Floats(), hn::And(words, hn::Set(Words(), 0xFFFF0000U)))};
  }
  static HWY_INLINE Pair InputOf(hn::Vec<Words> words) { return WeightOf(words); }
  static HWY_INLINE Sum MulAdd(Sum sum, const Pair& weights, const Pair& input) {
    return hn::MulAdd(weights.high, input.high, hn::MulAdd(weights.low, input.low, sum));
  }
};

// Base of the integer forms: raw codes are accumulated, and sums start at -zero * (sum of the row's integers).
struct IntegerSums {
  using Sum = hn::Vec<Integers>;
  static HWY_INLINE Sum Start(const RowGroup& group, int zero) { return hn::Set(Integers(), -zero * group.integers); }
  static HWY_INLINE hn::Vec<Floats> ToFloat(Sum sum) { return hn::ConvertTo(Floats(), sum); }
  static HWY_INLINE hn::Vec<Floats> Scaled(hn::Vec<Floats> scale, const RowGroup& group) {
    return hn::Mul(scale, hn::Set(Floats(), group.scale));
  }
};

// For each word, adds the products of its two pairs of 16-bit integers.
HWY_INLINE hn::Vec<Integers> PairSums(hn::Vec<Words> a, hn::Vec<Words> b) {
#if HWY_TARGET == HWY_AVX3
  return hn::Vec<Integers>{_mm512_madd_epi16(a.raw, b.raw)};
#elif HWY_TARGET == HWY_AVX2
  return hn::Vec<Integers>{_mm256_madd_epi16(a.raw, b.raw)};
#elif HWY_TARGET == HWY_SSE4
  return hn::Vec<Integers>{_mm_madd_epi16(a.raw, b.raw)};
#else
  const Integers d;
  const auto ia = hn::BitCast(d, a), ib = hn::BitCast(d, b);
  const auto low = hn::Mul(hn::ShiftRight<16>(hn::ShiftLeft<16>(ia)), hn::ShiftRight<16>(hn::ShiftLeft<16>(ib)));
  return hn::Add(low, hn::Mul(hn::ShiftRight<16>(ia), hn::ShiftRight<16>(ib)));
#endif
}

struct HalvesForm : IntegerSums {
  using Weight = hn::Vec<Words>;
  static HWY_INLINE Weight WeightOf(hn::Vec<Words> words) { return words; }
  static HWY_INLINE Weight InputOf(hn::Vec<Words> words) { return words; }
  static HWY_INLINE Sum MulAdd(Sum sum, Weight weights, Weight input) { return hn::Add(sum, PairSums(weights, input)); }
};

#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_SSE4
// Splits even and odd bytes into 16-bit lanes, whose products are added in pairs without overflow. The instruction
// that multiplies bytes directly would saturate.
struct IntegerForm : IntegerSums {
  struct Bytes {
    hn::Vec<Words> even, odd;
  };
  using Weight = Bytes;
  static HWY_INLINE Bytes WeightOf(hn::Vec<Words> words) {
    const hn::Repartition<std::uint16_t, Floats> du16;
    return {hn::And(words, hn::Set(Words(), 0x00FF00FFU)),
            hn::BitCast(Words(), hn::ShiftRight<8>(hn::BitCast(du16, words)))};
  }
  static HWY_INLINE Bytes InputOf(hn::Vec<Words> words) {
    const hn::Repartition<std::int16_t, Floats> d16;
    const auto bytes = hn::BitCast(d16, words);
    return {hn::BitCast(Words(), hn::ShiftRight<8>(hn::ShiftLeft<8>(bytes))),
            hn::BitCast(Words(), hn::ShiftRight<8>(bytes))};
  }
  static HWY_INLINE Sum MulAdd(Sum sum, const Bytes& weights, const Bytes& input) {
    return hn::Add(sum, hn::Add(PairSums(weights.even, input.even), PairSums(weights.odd, input.odd)));
  }
};

// Codes of up to 6 bits in bytes: the sum of two products of up to 63 * 127 does not saturate.
struct ShortCodesForm : IntegerSums {
  using Weight = hn::Vec<Words>;
  static HWY_INLINE Weight WeightOf(hn::Vec<Words> words) { return words; }
  static HWY_INLINE Weight InputOf(hn::Vec<Words> words) { return words; }
  static HWY_INLINE Weight ProductsOfPairs(Weight codes, Weight input) {
#if HWY_TARGET == HWY_AVX3
    return Weight{_mm512_maddubs_epi16(codes.raw, input.raw)};
#elif HWY_TARGET == HWY_AVX2
    return Weight{_mm256_maddubs_epi16(codes.raw, input.raw)};
#else
    return Weight{_mm_maddubs_epi16(codes.raw, input.raw)};
#endif
  }
  static HWY_INLINE Sum MulAdd(Sum sum, Weight weights, Weight input) {
    return hn::Add(sum, PairSums(ProductsOfPairs(weights, input), hn::Set(Words(), 0x00010001U)));
  }
};
#else
// Byte by byte in 32-bit lanes, for targets without such instructions.
struct IntegerForm : IntegerSums {
  using Weight = hn::Vec<Words>;
  static HWY_INLINE Weight WeightOf(hn::Vec<Words> words) { return words; }
  static HWY_INLINE Weight InputOf(hn::Vec<Words> words) { return words; }
  template <int kByte>
  static HWY_INLINE Sum Product(Weight weights, Weight input) {
    const Integers di;
    const auto code = hn::And(hn::ShiftRight<8 * kByte>(weights), hn::Set(Words(), 0xFFU));
    const auto integer = hn::ShiftRight<24>(hn::ShiftLeft<24 - 8 * kByte>(hn::BitCast(di, input)));
    return hn::Mul(hn::BitCast(di, code), integer);
  }
  static HWY_INLINE Sum MulAdd(Sum sum, Weight weights, Weight input) {
    const Sum low = hn::Add(Product<0>(weights, input), Product<1>(weights, input));
    return hn::Add(sum, hn::Add(low, hn::Add(Product<2>(weights, input), Product<3>(weights, input))));
  }
};
using ShortCodesForm = IntegerForm;
#endif

}  // namespace accord::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
