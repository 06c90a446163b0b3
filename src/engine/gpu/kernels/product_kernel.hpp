#pragma once
// Products of few rows with a weight, as when a language model decodes. The weight is read once, at the speed of
// memory. Each warp computes one output for all rows; its lanes share the inputs, and read several words of the
// weight before they use the first.

#include "engine/gpu/kernels/elementwise_kernel.hpp"
#include "engine/gpu/kernels/words.hpp"

namespace accord::engine {

/// The most rows of a FewRowsProduct.
inline constexpr int kFewRows = 8;

/// A weight [n, k], of x's dtype or float8_e4m3fn.
struct WeightOperand {
  const std::byte* data = nullptr;
  const float* scales = nullptr;  ///< [n], for float8: the factors of the sums
};

/// y [m, n] = activation(x * weight^T + bias), or, with a gate,
/// activation(x * gate^T + gate_bias) * (x * weight^T + bias). Summed in float32 and rounded once.
struct FewRowsCall {
  DType dtype = DType::kFloat32;  ///< of x: float32, bfloat16 or float16
  std::int64_t m = 0, n = 0, k = 0;
  const std::byte* x = nullptr;
  std::int64_t x_row_bytes = 0;
  WeightOperand weight, gate;
  std::int64_t weight_row_bytes = 0;  ///< bytes from row to row of weight and gate; 0: no gaps
  const void* bias = nullptr;         ///< of y's dtype, like gate_bias
  const void* gate_bias = nullptr;
  bool has_activation = false;
  kernels::UnaryOp activation = {};
  void* y = nullptr;
  DType y_dtype = DType::kFloat32;

  ACCORD_ON_DEVICE std::int64_t weight_stride(std::int64_t element_bytes) const {
    return weight_row_bytes != 0 ? weight_row_bytes : k * element_bytes;
  }
  /// Stores output `at` of a row, from its sums with the weight and, if there is one, with the gate.
  ACCORD_ON_DEVICE void finish(int row, std::int64_t at, float sum, float factor) const {
    if (weight.scales != nullptr) sum *= weight.scales[at];
    if (gate.scales != nullptr) factor *= gate.scales[at];
    if (bias != nullptr) sum += device::load_float(bias, y_dtype, at);
    if (gate_bias != nullptr) factor += device::load_float(gate_bias, y_dtype, at);
    float active = gate.data != nullptr ? factor : sum;
    if (has_activation) active = real_of(activation, active);
    device::store_float(y, y_dtype, row * n + at, gate.data != nullptr ? sum * active : active);
  }
};

enum class WeightKind : std::uint8_t { kSameAsRows, kFloat8 };

/// Products of at most kRows rows: 1, 2, 4 or 8. Weight and gate have x's dtype, or are both float8. Float8 has
/// kernels of its own because it needs more registers.
template <int kRows, WeightKind kWeights>
struct FewRowsProduct : FewRowsCall {
  static constexpr bool kFloat8 = kWeights == WeightKind::kFloat8;
  static constexpr const char* kName =
      kRows == 1   ? (kFloat8 ? "engine_float8_product_1_row" : "engine_product_1_row")
      : kRows == 2 ? (kFloat8 ? "engine_float8_product_2_rows" : "engine_product_2_rows")
      : kRows == 4 ? (kFloat8 ? "engine_float8_product_4_rows" : "engine_product_4_rows")
                   : (kFloat8 ? "engine_float8_product_8_rows" : "engine_product_8_rows");
  static constexpr int kThreads = 256;
  static constexpr bool kStartsEarly = true;

  template <typename Block>
  ACCORD_ON_DEVICE void operator()(Block& block) const {
    block.await_earlier();
    block.start_next();
    const auto lanes = static_cast<std::size_t>(block.lanes());
    for (std::size_t output = block.first() / lanes; output < static_cast<std::size_t>(n);
         output += block.stride() / lanes)
      compute(block, static_cast<std::int64_t>(output));
  }

  /// Computes one output for all rows, in the calling warp.
  template <typename Block>
  ACCORD_ON_DEVICE void compute(Block& block, std::int64_t at) const {
    float sums[kRows] = {}, gates[kRows] = {};
    add_products(block, weight.data, at, sums);
    if (gate.data != nullptr) add_products(block, gate.data, at, gates);
    ACCORD_UNROLLED
    for (int row = 0; row < kRows; ++row) {
      sums[row] = block.warp_sum(sums[row]);
      if (gate.data != nullptr) gates[row] = block.warp_sum(gates[row]);
    }
    for (int row = block.lane(); row < kRows; row += block.lanes())
      if (row < m) finish(row, at, number(sums, row), number(gates, row));
  }

 private:
  /// Words of the weight that a lane reads before it uses the first.
  static constexpr int kWordsAtOnce = kFloat8 ? 2 : 4;

  /// Returns numbers[row]. The numbers are in registers, which have no addresses.
  ACCORD_ON_DEVICE static float number(const float (&numbers)[kRows], int row) {
    float found = numbers[0];
    ACCORD_UNROLLED
    for (int i = 1; i < kRows; ++i) found = i == row ? numbers[i] : found;
    return found;
  }

  template <typename Block>
  ACCORD_ON_DEVICE void add_products(Block& block, const std::byte* matrix, std::int64_t output,
                                     float (&sums)[kRows]) const {
    switch (dtype) {
      case DType::kBFloat16: return add_products_of<DType::kBFloat16>(block, matrix, output, sums);
      case DType::kFloat16: return add_products_of<DType::kFloat16>(block, matrix, output, sums);
      default: return add_products_of<DType::kFloat32>(block, matrix, output, sums);
    }
  }
  template <DType kDType, typename Block>
  ACCORD_ON_DEVICE void add_products_of(Block& block, const std::byte* matrix, std::int64_t output,
                                        float (&sums)[kRows]) const {
    constexpr DType kWeight = kFloat8 ? DType::kFloat8E4M3FN : kDType;
    constexpr int kEach = kElementsOfWords<kWeight>, kBytes = 16 / kEach;
    constexpr int kInWords = kElementsOfWords<kDType>, kWords = kEach / kInWords;  // words of x for one of the weight
    const std::byte* const weights = matrix + output * weight_stride(kBytes);
    const auto alignment_bits = reinterpret_cast<std::uintptr_t>(matrix) | reinterpret_cast<std::uintptr_t>(x) |
                                static_cast<std::uintptr_t>(x_row_bytes | k * kBytes | weight_stride(kBytes));
    if (alignment_bits % sizeof(Words) != 0) return add_one_by_one<kDType, kWeight>(block, weights, sums);
    const std::int64_t words = k / kEach;
    const int lanes = block.lanes();
    ACCORD_UNROLLED_BY(1)
    for (std::int64_t first = block.lane(); first < words; first += lanes * kWordsAtOnce) {
      Words w[kWordsAtOnce];
      ACCORD_UNROLLED
      for (int i = 0; i < kWordsAtOnce; ++i)
        w[i] = words_at(reinterpret_cast<const Words*>(weights), first + i * lanes, words);
      [[maybe_unused]] float elements[kWordsAtOnce][kEach];  // for float8, which is decoded in pairs
      if constexpr (kFloat8) {
        ACCORD_UNROLLED
        for (int i = 0; i < kWordsAtOnce; ++i) elements_of<kWeight>(w[i], elements[i]);
      }
      ACCORD_UNROLLED
      for (int row = 0; row < kRows; ++row) {
        if (row >= m) break;
        const auto* const x_words = reinterpret_cast<const Words*>(x + row * x_row_bytes);
        Words v[kWordsAtOnce * kWords];
        ACCORD_UNROLLED
        for (int i = 0; i < kWordsAtOnce * kWords; ++i)
          v[i] = words_at(x_words, (first + i / kWords * lanes) * kWords + i % kWords, words * kWords);
        ACCORD_UNROLLED
        for (int i = 0; i < kWordsAtOnce * kWords; ++i) {
          ACCORD_UNROLLED
          for (int each = 0; each < kInWords; ++each) {
            float weight_at;
            if constexpr (kFloat8)
              weight_at = elements[i / kWords][i % kWords * kInWords + each];
            else
              weight_at = element_of<kWeight>(w[i], each);
            sums[row] = multiply_add(weight_at, element_of<kDType>(v[i], each), sums[row]);
          }
        }
      }
    }
  }
  /// For rows at any address and of any size.
  template <DType kDType, DType kWeight, typename Block>
  ACCORD_ON_DEVICE void add_one_by_one(Block& block, const std::byte* weights, float (&sums)[kRows]) const {
    for (std::int64_t i = block.lane(); i < k; i += block.lanes()) {
      const float w = device::load_float(weights, kWeight, i);
      ACCORD_UNROLLED
      for (int row = 0; row < kRows; ++row) {
        if (row >= m) break;
        sums[row] = multiply_add(w, device::load_float(x + row * x_row_bytes, kDType, i), sums[row]);
      }
    }
  }
};

}  // namespace accord::engine
