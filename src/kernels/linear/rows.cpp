// Rows are prepared chunk by chunk: converted to fp32 in a block on the stack, then written to memory in their form.
// A chunk is 512 bytes of a row, so that the matching tile of weights (32 KB) stays in the L1 cache.

#include "kernels/linear/rows.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/rounding.hpp"
#include "kernels/elementwise/row_kernels.hpp"
#include "kernels/simd_targets.hpp"

// Highway's files must come in this order.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/linear/rows.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace accord::kernels::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using Floats = hn::CappedTag<float, 16>;  // divides every group
constexpr int kMaxGroup = 128;

float SumOfGroup(const float* x, std::int64_t count) {
  const Floats d;
  auto sum = hn::Zero(d);
  for (std::int64_t i = 0; i < count; i += static_cast<std::int64_t>(hn::Lanes(d)))
    sum = hn::Add(sum, hn::LoadU(d, x + i));
  return hn::GetLane(hn::SumOfLanes(d, sum));
}

// Puts eight inputs into the order of 8-bit codes: 0 2 1 3, 4 6 5 7.
HWY_INLINE std::uint64_t InOrderOfInt8(std::uint64_t x) {
  return (x & 0xFF0000FFFF0000FFULL) | (x & 0x0000FF000000FF00ULL) << 8 | (x & 0x00FF000000FF0000ULL) >> 8;
}

// Moves the lower four bytes of `x` to every second byte.
HWY_INLINE std::uint64_t Spread(std::uint64_t x) {
  x = (x | x << 16) & 0x0000FFFF0000FFFFULL;
  return (x | x << 8) & 0x00FF00FF00FF00FFULL;
}

// Puts eight inputs into the order of unpacked 4-bit codes: 0 4 1 5, 2 6 3 7.
HWY_INLINE std::uint64_t InOrderOfInt4(std::uint64_t x) { return Spread(x & 0xFFFFFFFFU) | Spread(x >> 32) << 8; }

// Quantizes a group to integer multiples of max |x| / kMaxInteger.
template <typename T, int kMaxInteger>
HWY_INLINE RowGroup QuantizeGroup(const float* x, std::int64_t count, T* integers) {
  const Floats d;
  const hn::RebindToSigned<Floats> di;
  const hn::Rebind<std::int16_t, Floats> d16;
  const std::int64_t lanes = static_cast<std::int64_t>(hn::Lanes(d));
  auto largest = hn::Zero(d), nan_or_zeros = hn::Zero(d);
  for (std::int64_t i = 0; i < count; i += lanes) {
    const auto v = hn::LoadU(d, x + i);
    largest = hn::Max(largest, hn::Abs(v));
    nan_or_zeros = hn::Add(nan_or_zeros, hn::Mul(v, hn::Zero(d)));  // NaN if any value is not finite
  }
  RowGroup group;
  const float max = hn::GetLane(hn::MaxOfLanes(d, largest));
  const float nan_or_zero = hn::GetLane(hn::SumOfLanes(d, nan_or_zeros));
  const bool is_finite = nan_or_zero == 0.0F;
  constexpr auto kSteps = static_cast<float>(kMaxInteger);
  group.scale = is_finite ? max / kSteps : nan_or_zero;
  const auto inverse = hn::Set(d, is_finite && max > 1e-33F ? kSteps / max : 0.0F);
  auto sum = hn::Zero(di);
  for (std::int64_t i = 0; i < count; i += lanes) {
    const auto v = is_finite ? hn::LoadU(d, x + i) : hn::Zero(d);
    const auto integer = hn::NearestInt(hn::Mul(v, inverse));
    sum = hn::Add(sum, integer);
    if constexpr (sizeof(T) == 2) {
      hn::StoreU(hn::DemoteTo(d16, integer), d16, integers + i);
    } else {
      const hn::Rebind<std::int8_t, Floats> d8;
      hn::StoreU(hn::DemoteTo(d8, hn::DemoteTo(d16, integer)), d8, integers + i);
    }
  }
  group.integers = hn::GetLane(hn::SumOfLanes(di, sum));
  group.sum = group.scale * static_cast<float>(group.integers);
  return group;
}

HWY_INLINE RowGroup QuantizeToBytes(const float* x, std::int64_t count, WeightType type, std::uint32_t* words) {
  std::int8_t integers[kMaxGroup];
  const RowGroup group = QuantizeGroup<std::int8_t, 127>(x, count, integers);
  std::byte* const to = reinterpret_cast<std::byte*>(words);
  for (std::int64_t i = 0; i < count; i += 8) {
    std::uint64_t eight;
    std::memcpy(&eight, integers + i, sizeof(eight));
    eight = type == WeightType::kInt8 ? InOrderOfInt8(eight) : InOrderOfInt4(eight);
    std::memcpy(to + i, &eight, sizeof(eight));
  }
  return group;
}

// Quantizes all groups of a chunk.
void QuantizeGroups(const float* x, const RowsLayout& layout, std::uint32_t* words, RowGroup* groups) {
  const std::int64_t size = layout.format.group;
  for (std::int64_t g = 0; g < layout.chunk_groups(); ++g) {
    if (layout.form == Form::kInt16) {
      auto* const integers = reinterpret_cast<std::int16_t*>(words) + g * size;
      groups[g] = QuantizeGroup<std::int16_t, 32767>(x + g * size, size, integers);
    } else {
      groups[g] = QuantizeToBytes(x + g * size, size, layout.format.type, words + g * size / 4);
    }
  }
}

}  // namespace accord::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace accord::kernels {

HWY_EXPORT(SumOfGroup);
HWY_EXPORT(QuantizeGroups);

namespace {

constexpr std::int64_t kChunkWords = 128;
constexpr std::int64_t kMaxChunk = 4 * kChunkWords;

std::size_t bytes_of_words(const RowsLayout& layout) {
  const std::int64_t words = layout.in_units * layout.chunks_per_unit * layout.rows * layout.chunk_words();
  return static_cast<std::size_t>(round_up(words * 4, 64));
}

// Returns the conversion that is sufficient to prepare a row, or null if a row needs more.
RowKernel sufficient_conversion(const RowsLayout& layout, DType from) {
  const bool rounds = layout.arithmetic == Arithmetic::kBFloat16 && layout.form == Form::kFloat32;
  const bool sums = layout.format.minimum == Minimum::kPerGroup;
  if (has_integers(layout.form) || sums || (rounds && from != DType::kBFloat16)) return nullptr;
  return convert_row_kernel(from, layout.form == Form::kBFloat16 ? DType::kBFloat16 : DType::kFloat32);
}

// Stores one chunk of a row, in block [kMaxChunk] as fp32, as its words and groups.
void store(const RowsLayout& layout, DType dtype, float* block, std::uint32_t* words, RowGroup* groups) {
  const std::int64_t count = layout.chunk;
  if (has_integers(layout.form)) return HWY_DYNAMIC_DISPATCH(QuantizeGroups)(block, layout, words, groups);
  const bool rounds = layout.arithmetic == Arithmetic::kBFloat16 && dtype != DType::kBFloat16;
  std::uint16_t halves[kMaxChunk];
  if (layout.form == Form::kBFloat16 || rounds) {
    convert_between(DType::kFloat32, block, DType::kBFloat16, halves, count);
  }
  if (rounds) convert_between(DType::kBFloat16, halves, DType::kFloat32, block, count);
  const void* const from = layout.form == Form::kBFloat16 ? static_cast<const void*>(halves) : block;
  std::memcpy(words, from, static_cast<std::size_t>(layout.chunk_words()) * 4);
  if (layout.format.minimum == Minimum::kNone) return;
  for (std::int64_t g = 0; g < layout.chunk_groups(); ++g) {
    groups[g].sum = HWY_DYNAMIC_DISPATCH(SumOfGroup)(block + g * layout.format.group, layout.format.group);
  }
}

}  // namespace

std::size_t RowsLayout::bytes() const {
  const std::int64_t groups = in_units * chunks_per_unit * rows * chunk_groups();
  return bytes_of_words(*this) + static_cast<std::size_t>(groups) * sizeof(RowGroup);
}

bool RowsLayout::fits(const PackedMatrix& weights) const {
  return weights.format == format && weights.in_unit == in_unit && weights.in_units == in_units &&
         weights.in_padding == in_padding;
}

const std::uint32_t* RowsLayout::words(const std::byte* memory, std::int64_t index) const {
  return reinterpret_cast<const std::uint32_t*>(memory) + index * rows * chunk_words();
}

const RowGroup* RowsLayout::groups(const std::byte* memory, std::int64_t index) const {
  return reinterpret_cast<const RowGroup*>(memory + bytes_of_words(*this)) + index * rows * chunk_groups();
}

Result<RowsLayout> rows_layout(const PackedMatrix& weights, Arithmetic arithmetic, std::int64_t rows) {
  ACCORD_RETURN_IF_ERROR(check(weights.format));
  if (rows < 0 || weights.in_unit <= 0 || weights.in_units <= 0 || weights.out_unit <= 0 || weights.out_units <= 0) {
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("{} rows times packed weights of {} x {} blocks of [{}, {}]: sizes must be positive",
                              rows, weights.out_units, weights.in_units, weights.out_unit, weights.in_unit));
  }
  const PackedFormat& format = weights.format;
  if (format.type == WeightType::kFloat8) {
    return Status(StatusCode::kInvalidArgument, "float8_e4m3fn weights must be unpacked before they are multiplied");
  }
  if (arithmetic == Arithmetic::kInt8 && !format.has_integers()) {
    return Status(StatusCode::kInvalidArgument, "rows can be quantized to 8 bits only for weights of integers");
  }
  RowsLayout layout;
  layout.arithmetic = arithmetic;
  layout.format = format;
  layout.rows = rows;
  layout.in_unit = weights.in_unit;
  layout.in_units = weights.in_units;
  layout.in_padding = weights.in_padding;
  if (arithmetic == Arithmetic::kInt8) layout.form = Form::kInt8;
  if (arithmetic == Arithmetic::kBFloat16) {
    const bool pairs = format.quantized() || format.type == WeightType::kBFloat16;
    if (format.has_integers()) layout.form = Form::kInt16;
    const bool has_pairs = panel_kernels().has_bfloat16 || (format.quantized() && !format.has_integers());
    if (pairs && has_pairs) layout.form = Form::kBFloat16;
  }
  const std::int64_t padded = padded_in(format, weights.in_unit);
  layout.chunk = std::min(padded, kChunkWords * inputs_per_word(layout.form));
  layout.chunks_per_unit = (padded + layout.chunk - 1) / layout.chunk;
  return layout;
}

void prepare_row(const RowsLayout& layout, const void* x, DType dtype, std::int64_t row, std::byte* memory) {
  const std::int64_t element = static_cast<std::int64_t>(size_of(dtype));
  const RowKernel conversion = sufficient_conversion(layout, dtype);
  const RowKernel to_float = convert_row_kernel(dtype, DType::kFloat32);
  const std::int64_t in = layout.in_unit * layout.in_units - layout.in_padding;
  float block[kMaxChunk];
  for (std::int64_t index = 0; index < layout.in_units * layout.chunks_per_unit; ++index) {
    const std::int64_t begin = index % layout.chunks_per_unit * layout.chunk;
    const std::int64_t input = index / layout.chunks_per_unit * layout.in_unit + begin;
    const std::int64_t count = std::max<std::int64_t>(std::min({layout.chunk, layout.in_unit - begin, in - input}), 0);
    const void* const from = static_cast<const std::byte*>(x) + input * element;
    std::uint32_t* const words = const_cast<std::uint32_t*>(layout.words(memory, index)) + row * layout.chunk_words();
    if (conversion != nullptr) {
      const std::int64_t bytes = layout.chunk_words() * 4, used = count * bytes / layout.chunk;
      conversion(&from, words, count, {});
      std::memset(reinterpret_cast<std::byte*>(words) + used, 0, static_cast<std::size_t>(bytes - used));
      continue;
    }
    to_float(&from, block, count, {});
    std::fill(block + count, block + layout.chunk, 0.0F);
    store(layout, dtype, block, words,
          const_cast<RowGroup*>(layout.groups(memory, index)) + row * layout.chunk_groups());
  }
}

void prepare_rows(const RowsLayout& layout, const ConstRows& x, std::int64_t first, std::int64_t last,
                  std::byte* memory) {
  const std::int64_t stride = x.stride * static_cast<std::int64_t>(size_of(x.dtype));
  for (std::int64_t row = first; row < last; ++row) {
    prepare_row(layout, static_cast<const std::byte*>(x.data) + row * stride, x.dtype, row, memory);
  }
}

}  // namespace accord::kernels
#endif
