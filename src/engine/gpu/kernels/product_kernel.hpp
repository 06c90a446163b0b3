#pragma once
// Products of few rows with weights, as when a language model decodes. A weight is read once, at the speed of memory.
// Each warp computes one output for all rows; its lanes share the inputs, and read several words of the weight before
// they use the first. One launch computes all layers of an input (query, key and value).

#include "engine/gpu/kernels/elementwise_kernel.hpp"
#include "engine/gpu/kernels/words.hpp"
#include "kernels/activation.hpp"

namespace accord::engine {

/// The most rows of a FewRowsProduct.
inline constexpr int kFewRows = 8;

ACCORD_ON_DEVICE inline float activated(kernels::Activation activation, float x) {
  using kernels::Activation, kernels::UnaryOp;
  switch (activation) {
    case Activation::kNone: break;
    case Activation::kGeluErf: return real_of(UnaryOp::kGeluErf, x);
    case Activation::kGeluTanh: return real_of(UnaryOp::kGeluTanh, x);
    case Activation::kRelu: return real_of(UnaryOp::kRelu, x);
    case Activation::kSilu: return real_of(UnaryOp::kSilu, x);
    case Activation::kTanh: return real_of(UnaryOp::kTanh, x);
    case Activation::kReluSquared: {
      const float positive = real_of(UnaryOp::kRelu, x);
      return positive * positive;
    }
  }
  return x;
}

/// A weight [n, k], of x's dtype or float8_e4m3fn. The value of a float8 element is the element times its scale.
struct WeightOperand {
  const std::byte* data = nullptr;
  /// For float8: [groups, n], or [n] without groups. Without groups, scales are the factors of the finished sums.
  const float* scales = nullptr;
  int group_bits = 0;  ///< 2^group_bits inputs share a scale: 16, 32, 64 or 128; 0: all inputs of an output do

  ACCORD_ON_DEVICE bool has_groups() const { return group_bits != 0; }
  ACCORD_ON_DEVICE std::int64_t groups(std::int64_t k) const { return has_groups() ? ((k - 1) >> group_bits) + 1 : 1; }
  /// Returns the scale of an input of an output. REQUIRES: has_groups().
  ACCORD_ON_DEVICE float scale(std::int64_t n, std::int64_t output, std::int64_t input) const {
    return scales[(input >> group_bits) * n + output];
  }
};

/// y [m, n] = activation(x * weight^T + bias), or, with a gate,
/// activation(x * gate^T + gate_bias) * (x * weight^T + bias). Summed in float32 and rounded once.
struct ProductCall {
  DType dtype = DType::kFloat32;  ///< of x: float32, bfloat16 or float16
  std::int64_t m = 0, n = 0, k = 0;
  const std::byte* x = nullptr;
  std::int64_t x_row_bytes = 0;
  WeightOperand weight, gate;
  std::int64_t weight_row_bytes = 0;  ///< bytes from row to row of weight and gate; 0: no gaps
  const void* bias = nullptr;         ///< of y's dtype, like gate_bias
  const void* gate_bias = nullptr;
  kernels::Activation activation = kernels::Activation::kNone;
  void* y = nullptr;
  DType y_dtype = DType::kFloat32;

  ACCORD_ON_DEVICE std::int64_t weight_stride(std::int64_t element_bytes) const {
    return weight_row_bytes != 0 ? weight_row_bytes : k * element_bytes;
  }
  /// Stores output `at` of a row, from its sums with the weight and, if there is one, with the gate.
  ACCORD_ON_DEVICE void finish(std::int64_t row, std::int64_t at, float sum, float factor) const {
    if (weight.scales != nullptr && !weight.has_groups()) sum *= weight.scales[at];
    if (gate.scales != nullptr && !gate.has_groups()) factor *= gate.scales[at];
    if (bias != nullptr) sum += device::load_float(bias, y_dtype, at);
    if (gate_bias != nullptr) factor += device::load_float(gate_bias, y_dtype, at);
    const float active = activated(activation, gate.data != nullptr ? factor : sum);
    device::store_float(y, y_dtype, row * n + at, gate.data != nullptr ? sum * active : active);
  }
};

/// Products of equally many rows that one launch computes. They do not depend on each other.
struct ProductCalls {
  static constexpr int kMaxCalls = 4;
  ProductCall of[kMaxCalls];
  int count = 0;
};

enum class WeightKind : std::uint8_t { kSameAsRows, kFloat8 };

/// Computes outputs of at most kRows rows: 1, 2, 4 or 8. Weight and gate have x's dtype, or are both float8.
template <int kRows, WeightKind kWeights>
class FewRows {
 public:
  /// Computes one output for all rows, in the calling warp.
  template <typename Block>
  ACCORD_ON_DEVICE static void compute(Block& block, const ProductCall& call, std::int64_t at) {
    float sums[kRows] = {}, gates[kRows] = {};
    add_products(block, call, call.weight, at, sums);
    if (call.gate.data != nullptr) add_products(block, call, call.gate, at, gates);
    ACCORD_UNROLLED
    for (int row = 0; row < kRows; ++row) {
      sums[row] = block.warp_sum(sums[row]);
      if (call.gate.data != nullptr) gates[row] = block.warp_sum(gates[row]);
    }
    for (int row = block.lane(); row < kRows; row += block.lanes())
      if (row < call.m) call.finish(row, at, number(sums, row), number(gates, row));
  }

 private:
  static constexpr bool kFloat8 = kWeights == WeightKind::kFloat8;
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
  ACCORD_ON_DEVICE static void add_products(Block& block, const ProductCall& call, const WeightOperand& matrix,
                                            std::int64_t output, float (&sums)[kRows]) {
    switch (call.dtype) {
      case DType::kBFloat16: return add_products_of<DType::kBFloat16>(block, call, matrix, output, sums);
      case DType::kFloat16: return add_products_of<DType::kFloat16>(block, call, matrix, output, sums);
      default: return add_products_of<DType::kFloat32>(block, call, matrix, output, sums);
    }
  }
  template <DType kDType, typename Block>
  ACCORD_ON_DEVICE static void add_products_of(Block& block, const ProductCall& call, const WeightOperand& matrix,
                                               std::int64_t output, float (&sums)[kRows]) {
    constexpr DType kWeight = kFloat8 ? DType::kFloat8E4M3FN : kDType;
    constexpr int kEach = kElementsOfWords<kWeight>, kBytes = 16 / kEach;
    constexpr int kInWords = kElementsOfWords<kDType>, kWords = kEach / kInWords;  // words of x for one of the weight
    const std::byte* const weights = matrix.data + output * call.weight_stride(kBytes);
    const auto alignment_bits =
        reinterpret_cast<std::uintptr_t>(matrix.data) | reinterpret_cast<std::uintptr_t>(call.x) |
        static_cast<std::uintptr_t>(call.x_row_bytes | call.k * kBytes | call.weight_stride(kBytes));
    if (alignment_bits % sizeof(Words) != 0) return add_one_by_one<kDType, kWeight>(block, call, matrix, output, sums);
    const std::int64_t words = call.k / kEach;
    const int lanes = block.lanes();
    ACCORD_UNROLLED_BY(1)
    for (std::int64_t first = block.lane(); first < words; first += lanes * kWordsAtOnce) {
      Words w[kWordsAtOnce];
      ACCORD_UNROLLED
      for (int i = 0; i < kWordsAtOnce; ++i)
        w[i] = words_at(reinterpret_cast<const Words*>(weights), first + i * lanes, words);
      [[maybe_unused]] float elements[kWordsAtOnce][kEach];  // for float8, which is decoded in pairs
      [[maybe_unused]] float scales[kWordsAtOnce];
      if constexpr (kFloat8) {
        ACCORD_UNROLLED
        for (int i = 0; i < kWordsAtOnce; ++i) {
          const std::int64_t word = first + i * lanes;
          scales[i] = matrix.has_groups() && word < words ? matrix.scale(call.n, output, word * kEach) : 1.0F;
        }
        ACCORD_UNROLLED
        for (int i = 0; i < kWordsAtOnce; ++i) elements_of<kWeight>(w[i], elements[i]);
      }
      ACCORD_UNROLLED
      for (int row = 0; row < kRows; ++row) {
        if (row >= call.m) break;
        const auto* const x_words = reinterpret_cast<const Words*>(call.x + row * call.x_row_bytes);
        Words v[kWordsAtOnce * kWords];
        ACCORD_UNROLLED
        for (int i = 0; i < kWordsAtOnce * kWords; ++i)
          v[i] = words_at(x_words, (first + i / kWords * lanes) * kWords + i % kWords, words * kWords);
        ACCORD_UNROLLED
        for (int i = 0; i < kWordsAtOnce; ++i) {
          float sum = kFloat8 ? 0.0F : sums[row];  // a word of float8 has one scale
          ACCORD_UNROLLED
          for (int each = 0; each < kEach; ++each) {
            float weight_at;
            if constexpr (kFloat8)
              weight_at = elements[i][each];
            else
              weight_at = element_of<kWeight>(w[i], each);
            sum = multiply_add(weight_at, element_of<kDType>(v[i * kWords + each / kInWords], each % kInWords), sum);
          }
          if constexpr (kFloat8)
            sums[row] = multiply_add(sum, scales[i], sums[row]);
          else
            sums[row] = sum;
        }
      }
    }
  }
  /// For rows at any address and of any size.
  template <DType kDType, DType kWeight, typename Block>
  ACCORD_ON_DEVICE static void add_one_by_one(Block& block, const ProductCall& call, const WeightOperand& matrix,
                                              std::int64_t output, float (&sums)[kRows]) {
    constexpr int kBytes = 16 / kElementsOfWords<kWeight>;
    const std::byte* const weights = matrix.data + output * call.weight_stride(kBytes);
    for (std::int64_t i = block.lane(); i < call.k; i += block.lanes()) {
      float w = device::load_float(weights, kWeight, i);
      if (kFloat8 && matrix.has_groups()) w *= matrix.scale(call.n, output, i);
      ACCORD_UNROLLED
      for (int row = 0; row < kRows; ++row) {
        if (row >= call.m) break;
        sums[row] = multiply_add(w, device::load_float(call.x + row * call.x_row_bytes, kDType, i), sums[row]);
      }
    }
  }
};

/// Products of at most kRows rows: 1, 2, 4 or 8. Float8 has kernels of its own because it needs more registers.
template <int kRows, WeightKind kWeights>
struct FewRowsProduct : ProductCalls {
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
    const int warps = block.threads() / block.lanes();
    // Only the number of the output lives across compute(), which needs all registers.
    for (int output = block.block() * warps + block.thread() / block.lanes();; output += warps * block.blocks()) {
      int at = output, call = 0;
      while (call < count && at >= of[call].n) at -= static_cast<int>(of[call++].n);
      if (call == count) return;
      FewRows<kRows, kWeights>::compute(block, of[call], at);
    }
  }
};

}  // namespace accord::engine
