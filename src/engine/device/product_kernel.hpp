#pragma once
// Few rows times a weight, as when a language model decodes: the weight is read once, at the speed of the memory. Each warp makes one output of
// all rows, its lanes share the inputs.

#include "engine/device/elementwise_kernel.hpp"

namespace accord::engine {

/// y [m, n] = activation(x * weight^T + bias), or with a gate activation(x * gate^T + gate_bias) * (x * weight^T + bias); summed in
/// float32, rounded once.
struct FewRowsProduct {
  static constexpr const char* kName = "engine_few_rows_product";
  static constexpr int kThreads = 256;
  static constexpr int kMostRows = 8;
  DType dtype = DType::kFloat32;  ///< of x, weight and gate: float32, bfloat16 or float16
  std::int64_t m = 0, n = 0, k = 0;
  const std::byte* x = nullptr;
  std::int64_t x_row_bytes = 0;
  const std::byte* weight = nullptr;  ///< [n, k] without gaps, as gate
  const std::byte* gate = nullptr;
  const void* bias = nullptr;  ///< of y's dtype, as gate_bias
  const void* gate_bias = nullptr;
  bool activates = false;
  kernels::UnaryOp activation = {};
  void* y = nullptr;
  DType y_dtype = DType::kFloat32;

  template <typename Block>
  ACCORD_ON_DEVICE void operator()(Block& block) const {
    const auto lanes = static_cast<std::size_t>(block.lanes());
    for (std::size_t output = block.first() / lanes; output < static_cast<std::size_t>(n);
         output += block.stride() / lanes) {
      const auto at = static_cast<std::int64_t>(output);
      float sums[kMostRows] = {}, gates[kMostRows] = {};
      add_products(block, weight, at, sums);
      if (gate != nullptr) add_products(block, gate, at, gates);
      for (int row = 0; row < kMostRows; ++row) {
        if (row >= m) break;
        float sum = block.warp_sum(sums[row]);
        if (bias != nullptr) sum += device::load_float(bias, y_dtype, at);
        if (gate != nullptr) {
          float factor = block.warp_sum(gates[row]);
          if (gate_bias != nullptr) factor += device::load_float(gate_bias, y_dtype, at);
          sum *= activates ? real_of(activation, factor) : factor;
        } else if (activates) {
          sum = real_of(activation, sum);
        }
        if (block.lane() == 0) device::store_float(y, y_dtype, row * n + at, sum);
      }
    }
  }

 private:
  /// 16 bytes, as memory is read best.
  struct alignas(16) Words {
    std::uint32_t of[4];
  };
  template <DType kDType>
  ACCORD_ON_DEVICE static float element(const Words& words, int i) {
    if constexpr (kDType == DType::kFloat32) {
      return device::float_of(words.of[i]);
    } else {
      const auto half = static_cast<std::uint16_t>(words.of[i / 2] >> (i % 2 * 16));
      return kDType == DType::kBFloat16 ? device::from_bfloat16(half) : device::from_float16(half);
    }
  }
  template <typename Block>
  ACCORD_ON_DEVICE void add_products(Block& block, const std::byte* matrix, std::int64_t output,
                                     float (&sums)[kMostRows]) const {
    switch (dtype) {
      case DType::kBFloat16: return add_products_of<DType::kBFloat16>(block, matrix, output, sums);
      case DType::kFloat16: return add_products_of<DType::kFloat16>(block, matrix, output, sums);
      default: return add_products_of<DType::kFloat32>(block, matrix, output, sums);
    }
  }
  template <DType kDType, typename Block>
  ACCORD_ON_DEVICE void add_products_of(Block& block, const std::byte* matrix, std::int64_t output,
                                        float (&sums)[kMostRows]) const {
    constexpr int kBytes = kDType == DType::kFloat32 ? 4 : 2, kEach = 16 / kBytes;
    const std::byte* const weights = matrix + output * k * kBytes;
    const auto together = reinterpret_cast<std::uintptr_t>(matrix) | reinterpret_cast<std::uintptr_t>(x) |
                          static_cast<std::uintptr_t>(x_row_bytes | k * kBytes);
    if (together % sizeof(Words) == 0) {
      for (std::int64_t i = block.lane(); i < k / kEach; i += block.lanes()) {
        const Words w = reinterpret_cast<const Words*>(weights)[i];
        for (int row = 0; row < kMostRows; ++row) {
          if (row >= m) break;
          const Words v = reinterpret_cast<const Words*>(x + row * x_row_bytes)[i];
          for (int each = 0; each < kEach; ++each) sums[row] += element<kDType>(w, each) * element<kDType>(v, each);
        }
      }
      return;
    }
    for (std::int64_t i = block.lane(); i < k; i += block.lanes()) {
      const float w = device::load_float(weights, kDType, i);
      for (int row = 0; row < kMostRows; ++row) {
        if (row >= m) break;
        sums[row] += w * device::load_float(x + row * x_row_bytes, kDType, i);
      }
    }
  }
};

}  // namespace accord::engine
