#pragma once
// The kernel for norms of rows.

#include <cmath>
#include <cstdint>

#include "accord/buffer.hpp"
#include "device/numbers.hpp"
#include "engine/gpu/kernels/operands.hpp"

namespace accord::engine {

/// y = norm(s) * weight + bias for each row s = x + addend + residual. The sums are rounded to the dtype, as in
/// PyTorch. s is also written to `sum`. A null pointer means that an operand is absent. Between its passes the kernel
/// stores a row in `sum`, or else in y; both may be the memory of x or residual.
struct NormRows {
  static constexpr const char* kName = "norm_rows";
  static constexpr int kThreads = 512;
  bool subtract_mean = false;  ///< true: layer_norm, which first subtracts the mean; false: rms_norm
  DType dtype = DType::kFloat32;
  std::int64_t rows = 0, width = 0;
  RowOperand x, residual, y, sum;
  const void* weight = nullptr;
  const void* bias = nullptr;
  const void* addend = nullptr;
  float eps = 0.0F;

  template <typename Block>
  ACCORD_ON_DEVICE void operator()(Block& block) const {
    for (std::int64_t row = block.block(); row < rows; row += block.blocks()) {
      const RowOperand& kept = sum.data == nullptr ? y : sum;
      float total = 0.0F;
      for (std::int64_t i = block.thread(); i < width; i += block.threads()) {
        float s = device::load_float(x.data, dtype, row * x.stride + i);
        if (addend != nullptr) s = device::rounded_to(dtype, s + device::load_float(addend, dtype, i));
        if (residual.data != nullptr)
          s = device::rounded_to(dtype, s + device::load_float(residual.data, dtype, row * residual.stride + i));
        device::store_float(kept.data, dtype, row * kept.stride + i, s);
        total += subtract_mean ? s : s * s;
      }
      total = block.block_sum(total) / static_cast<float>(width);
      const float mean = subtract_mean ? total : 0.0F;
      float variance = total;
      if (subtract_mean) {
        variance = 0.0F;
        for (std::int64_t i = block.thread(); i < width; i += block.threads()) {
          const float s = device::load_float(kept.data, dtype, row * kept.stride + i) - mean;
          variance += s * s;
        }
        variance = block.block_sum(variance) / static_cast<float>(width);
      }
      const float scale = 1.0F / sqrtf(variance + eps);
      for (std::int64_t i = block.thread(); i < width; i += block.threads()) {
        float s = (device::load_float(kept.data, dtype, row * kept.stride + i) - mean) * scale;
        if (weight != nullptr) s *= device::load_float(weight, dtype, i);
        if (bias != nullptr) s += device::load_float(bias, dtype, i);
        device::store_float(y.data, dtype, row * y.stride + i, s);
      }
    }
  }
};

}  // namespace accord::engine
