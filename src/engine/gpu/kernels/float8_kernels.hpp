#pragma once
// Kernels that round rows of wider numbers to float8_e4m3fn with one scale per row, and that widen them again. Where
// rows are multiples of 16 elements, a thread processes 16 at a time; otherwise it processes them one by one.

#include "engine/gpu/kernels/product_kernel.hpp"

namespace accord::engine {

inline constexpr int kSixteen = 16;  ///< elements of float8 in one of Words

/// Loads 16 elements from an address that is a multiple of 16 bytes.
template <DType kDType>
ACCORD_ON_DEVICE inline void load_sixteen(const std::byte* from, float (&x)[kSixteen]) {
  constexpr int kEach = kElementsOfWords<kDType>;
  ACCORD_UNROLLED
  for (int word = 0; word < kSixteen / kEach; ++word) {
    float elements[kEach];
    elements_of<kDType>(reinterpret_cast<const Words*>(from)[word], elements);
    ACCORD_UNROLLED
    for (int i = 0; i < kEach; ++i) x[word * kEach + i] = elements[i];
  }
}
ACCORD_ON_DEVICE inline void load_sixteen(DType dtype, const std::byte* from, float (&x)[kSixteen]) {
  switch (dtype) {
    case DType::kBFloat16: return load_sixteen<DType::kBFloat16>(from, x);
    case DType::kFloat16: return load_sixteen<DType::kFloat16>(from, x);
    case DType::kFloat8E4M3FN: return load_sixteen<DType::kFloat8E4M3FN>(from, x);
    default: return load_sixteen<DType::kFloat32>(from, x);
  }
}

/// Stores 16 elements of float32, bfloat16, float16 or float8_e4m3fn at an address that is a multiple of 16 bytes.
ACCORD_ON_DEVICE inline void store_sixteen(DType dtype, std::byte* to, const float (&x)[kSixteen]) {
  auto* const words = reinterpret_cast<Words*>(to);
  if (dtype == DType::kFloat8E4M3FN) {
    Words packed;
    ACCORD_UNROLLED
    for (int i = 0; i < 4; ++i)
      packed.of[i] = float8_pair(x[4 * i], x[4 * i + 1]) | float8_pair(x[4 * i + 2], x[4 * i + 3]) << 16;
    words[0] = packed;
  } else if (dtype == DType::kFloat32) {
    ACCORD_UNROLLED
    for (int word = 0; word < 4; ++word) {
      Words packed;
      ACCORD_UNROLLED
      for (int i = 0; i < 4; ++i) packed.of[i] = device::bits_of(x[4 * word + i]);
      words[word] = packed;
    }
  } else {
    ACCORD_UNROLLED
    for (int word = 0; word < 2; ++word) {
      Words packed;
      ACCORD_UNROLLED
      for (int i = 0; i < 4; ++i) {
        const float low = x[8 * word + 2 * i], high = x[8 * word + 2 * i + 1];
        packed.of[i] = dtype == DType::kBFloat16
                           ? device::to_bfloat16(low) | std::uint32_t{device::to_bfloat16(high)} << 16
                           : device::to_float16(low) | std::uint32_t{device::to_float16(high)} << 16;
      }
      words[word] = packed;
    }
  }
}

/// Returns index / by for numbers that are not negative.
ACCORD_ON_DEVICE inline std::int64_t quotient(std::int64_t index, std::int64_t by) {
  if ((index | by) >> 32 != 0) return index / by;
  return static_cast<std::uint32_t>(index) / static_cast<std::uint32_t>(by);  // much faster than 64-bit division
}

/// Row i of y is row i of x divided by its scale and rounded; scales[i] is the largest magnitude of the row / 448. A
/// row of zeros has a scale of 0. Infinities and NaN become NaN. Each block computes one row.
struct RoundRows {
  static constexpr const char* kName = "engine_round_rows";
  static constexpr int kThreads = 256;
  const std::byte* x = nullptr;
  DType dtype = DType::kFloat32;
  std::int64_t x_row_bytes = 0;
  std::int64_t rows = 0, width = 0;  ///< width: a multiple of 16
  std::byte* y = nullptr;            ///< [rows, width]
  float* scales = nullptr;

  template <typename Block>
  ACCORD_ON_DEVICE void operator()(Block& block) const {
    const bool is_aligned = (reinterpret_cast<std::uintptr_t>(x) | static_cast<std::uintptr_t>(x_row_bytes)) % 16 == 0;
    for (std::int64_t row = block.block(); row < rows; row += block.blocks()) {
      const std::byte* const x_row = x + row * x_row_bytes;
      float largest = 0.0F;
      for (std::int64_t at = block.thread(); at < width / kSixteen; at += block.threads()) {
        float numbers[kSixteen];
        load(x_row, at, is_aligned, numbers);
        ACCORD_UNROLLED
        for (const float number : numbers) {
          const float magnitude = number < 0.0F ? -number : number;
          if (magnitude > largest) largest = magnitude;
        }
      }
      const float scale = block.block_max(largest) / 448.0F;
      if (block.thread() == 0) scales[row] = scale;
      for (std::int64_t at = block.thread(); at < width / kSixteen; at += block.threads()) {
        float numbers[kSixteen];
        load(x_row, at, is_aligned, numbers);
        ACCORD_UNROLLED
        for (float& number : numbers) number = scale == 0.0F && number == number ? 0.0F : number / scale;
        store_sixteen(DType::kFloat8E4M3FN, y + row * width + at * kSixteen, numbers);
      }
    }
  }

 private:
  ACCORD_ON_DEVICE void load(const std::byte* row, std::int64_t at, bool is_aligned, float (&numbers)[kSixteen]) const {
    const auto bytes = static_cast<std::int64_t>(dtype == DType::kFloat32 ? 4 : 2) * kSixteen;
    if (is_aligned) return load_sixteen(dtype, row + at * bytes, numbers);
    ACCORD_UNROLLED
    for (int i = 0; i < kSixteen; ++i) numbers[i] = device::load_float(row, dtype, at * kSixteen + i);
  }
};

/// Row i of y, in a wider dtype, is row ids[i] - first_row of a float8_e4m3fn table times the scale of that row, or of
/// its groups. Ids whose rows are on other ranks give zeros. Without ids, row i is row i of the table.
struct WidenRows {
  static constexpr const char* kName = "engine_widen_rows";
  static constexpr int kThreads = 256;
  WeightOperand table;          ///< [table_rows, width]
  std::int64_t scale_rows = 0;  ///< the rows of the scales of groups, [groups, scale_rows]
  const void* ids = nullptr;
  DType id_dtype = DType::kInt64;
  std::int64_t count = 0, width = 0;
  std::int64_t table_rows = 0, first_row = 0, total_rows = 0;
  std::byte* y = nullptr;  ///< [count, width]
  DType y_dtype = DType::kFloat32;
  FaultReport report;

  template <typename Block>
  ACCORD_ON_DEVICE void operator()(Block& block) const {
    const auto starts = reinterpret_cast<std::uintptr_t>(table.data) | reinterpret_cast<std::uintptr_t>(y);
    const bool is_aligned = (starts | static_cast<std::uintptr_t>(width)) % 16 == 0;
    const std::int64_t each = is_aligned ? kSixteen : 1, pieces = width / each;
    for (std::size_t i = block.first(); i < static_cast<std::size_t>(count * pieces); i += block.stride()) {
      const auto index = static_cast<std::int64_t>(i);
      const std::int64_t row = quotient(index, pieces), column = (index - row * pieces) * each;
      const std::int64_t from = row_of(block, row, column == 0);
      const float scale = from < 0             ? 0.0F
                          : table.has_groups() ? table.scale(scale_rows, from, column)
                                               : table.scales[from];
      const std::int64_t at = row * width + column;
      if (is_aligned) {
        float numbers[kSixteen] = {};
        if (from >= 0) load_sixteen<DType::kFloat8E4M3FN>(table.data + from * width + column, numbers);
        ACCORD_UNROLLED
        for (float& number : numbers) number *= scale;
        store_sixteen(y_dtype, y + at * (y_dtype == DType::kFloat32 ? 4 : 2), numbers);
      } else {
        const float number =
            from < 0 ? 0.0F : device::load_float(table.data, DType::kFloat8E4M3FN, from * width + column);
        device::store_float(y, y_dtype, at, number * scale);
      }
    }
  }

 private:
  /// Returns the row of the table for row `row` of y, or -1 if there is none.
  template <typename Block>
  ACCORD_ON_DEVICE std::int64_t row_of(Block& block, std::int64_t row, bool reports) const {
    if (ids == nullptr) return row;
    const std::int64_t id = device::load_integer(ids, id_dtype, row);
    const bool bad = id < 0 || id >= total_rows;
    if (bad && reports) report.report(block, Fault::kId, id, row, total_rows);
    const std::int64_t from = id - first_row;
    return !bad && from >= 0 && from < table_rows ? from : -1;
  }
};

/// y [m, n] = sums * row_scales * column_scales + bias: completes a float8 product where the library does not apply
/// scales.
struct ScaleSums {
  static constexpr const char* kName = "engine_scale_sums";
  static constexpr int kThreads = 256;
  const std::byte* sums = nullptr;  ///< float32 [m, n]
  std::int64_t m = 0, n = 0;        ///< n: a multiple of 16
  const float* row_scales = nullptr;
  const float* column_scales = nullptr;
  const void* bias = nullptr;  ///< [n] of y's dtype
  std::byte* y = nullptr;      ///< begins at a multiple of 16 bytes, as do the sums
  DType y_dtype = DType::kFloat32;

  template <typename Block>
  ACCORD_ON_DEVICE void operator()(Block& block) const {
    const std::int64_t pieces = n / kSixteen;
    for (std::size_t i = block.first(); i < static_cast<std::size_t>(m * pieces); i += block.stride()) {
      const auto index = static_cast<std::int64_t>(i);
      const std::int64_t row = quotient(index, pieces), column = (index - row * pieces) * kSixteen;
      float numbers[kSixteen];
      load_sixteen<DType::kFloat32>(sums + (row * n + column) * 4, numbers);
      ACCORD_UNROLLED
      for (int at = 0; at < kSixteen; ++at) {
        numbers[at] = numbers[at] * row_scales[row] * column_scales[column + at];
        if (bias != nullptr) numbers[at] += device::load_float(bias, y_dtype, column + at);
      }
      store_sixteen(y_dtype, y + (row * n + column) * (y_dtype == DType::kFloat32 ? 4 : 2), numbers);
    }
  }
};

}  // namespace accord::engine
