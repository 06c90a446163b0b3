#pragma once
// Kernels whose blocks each compute one row, or one number out of many: softmax and reductions. Also sums along a
// dimension.

#include <cmath>

#include "engine/gpu/kernels/operands.hpp"
#include "kernels/sum.hpp"

namespace accord::engine {

/// y = softmax of each row of x, or its logarithm. y may be x.
struct SoftmaxRows {
  static constexpr const char* kName = "engine_softmax";
  static constexpr int kThreads = 512;
  bool logarithm = false;
  DType dtype = DType::kFloat32;
  std::int64_t rows = 0, width = 0;
  RowOperand x, y;

  template <typename Block>
  ACCORD_ON_DEVICE void operator()(Block& block) const {
    for (std::int64_t row = block.block(); row < rows; row += block.blocks()) {
      float largest = -INFINITY;
      for (std::int64_t i = block.thread(); i < width; i += block.threads()) {
        const float value = at(row, i);
        largest = value > largest ? value : largest;
      }
      largest = block.block_max(largest);
      float total = 0.0F;
      for (std::int64_t i = block.thread(); i < width; i += block.threads()) total += expf(at(row, i) - largest);
      total = block.block_sum(total);
      const float log_total = logf(total);
      for (std::int64_t i = block.thread(); i < width; i += block.threads()) {
        const float from_largest = at(row, i) - largest;
        device::store_float(y.data, dtype, row * y.stride + i,
                            logarithm ? from_largest - log_total : expf(from_largest) / total);
      }
    }
  }

 private:
  ACCORD_ON_DEVICE float at(std::int64_t row, std::int64_t i) const {
    return device::load_float(x.data, dtype, row * x.stride + i);
  }
};

/// Each of `outputs` numbers of y is the reduction of `length` numbers of x. `shape` has the dimensions that stay,
/// `reduced` the dimensions that are reduced.
struct Reduce {
  static constexpr const char* kName = "engine_reduce";
  static constexpr int kThreads = 256;
  kernels::Reduction kind = kernels::Reduction::kSum;
  bool real = true;
  std::int64_t outputs = 0, length = 0;
  Shape shape;
  Operand kept[2];  ///< y, x
  Shape reduced;
  Operand inner[1];  ///< x again, with the strides of the reduced dimensions

  template <typename Block>
  ACCORD_ON_DEVICE void operator()(Block& block) const {
    for (std::int64_t output = block.block(); output < outputs; output += block.blocks()) {
      const Offsets<2> at = offsets_at(shape, kept, output);
      if (real) {
        const float y = real_result(block, at.of[1]);
        if (block.thread() == 0) device::store_float(kept[0].data, kept[0].dtype, at.of[0], y);
      } else {
        const std::int64_t y = whole_result(block, at.of[1]);
        if (block.thread() == 0) device::store_integer(kept[0].data, kept[0].dtype, at.of[0], y);
      }
    }
  }

 private:
  template <typename Block>
  ACCORD_ON_DEVICE float real_result(Block& block, std::int64_t first) const {
    using kernels::Reduction;
    const bool sums = kind == Reduction::kSum || kind == Reduction::kMean;
    double total = 0.0;
    float largest = -INFINITY;
    std::int64_t nan_count = 0;  // NaNs, which make the result NaN
    for (std::int64_t i = block.thread(); i < length; i += block.threads()) {
      const float x = device::load_float(inner[0].data, inner[0].dtype, first + offsets_at(reduced, inner, i).of[0]);
      const float oriented = kind == Reduction::kMin ? -x : x;
      total += static_cast<double>(x);
      largest = oriented > largest ? oriented : largest;
      nan_count += x != x;
    }
    if (sums) {
      total = block.block_sum(total);
      return static_cast<float>(kind == Reduction::kMean ? total / static_cast<double>(length) : total);
    }
    largest = block.block_max(largest);
    if (block.block_sum(nan_count) > 0) return NAN;
    return kind == Reduction::kMin ? -largest : largest;
  }
  template <typename Block>
  ACCORD_ON_DEVICE std::int64_t whole_result(Block& block, std::int64_t first) const {
    using kernels::Reduction;
    std::uint64_t total = 0;
    std::int64_t largest = INT64_MIN;
    for (std::int64_t i = block.thread(); i < length; i += block.threads()) {
      const std::int64_t x =
          device::load_integer(inner[0].data, inner[0].dtype, first + offsets_at(reduced, inner, i).of[0]);
      const std::int64_t oriented = kind == Reduction::kMin ? ~x : x;  // reverses the order
      total += kind == Reduction::kAny ? static_cast<std::uint64_t>(x != 0) : static_cast<std::uint64_t>(x);
      largest = oriented > largest ? oriented : largest;
    }
    if (kind == Reduction::kSum) return static_cast<std::int64_t>(block.block_sum(total));
    if (kind == Reduction::kAny) return block.block_sum(total) > 0 ? 1 : 0;
    largest = block.block_max(largest);
    return kind == Reduction::kMin ? ~largest : largest;
  }
};

/// y is the running sum of x along a dimension of `length`. `shape` has the other dimensions. Each thread computes
/// one line.
struct CumulativeSum {
  static constexpr const char* kName = "engine_cumulative_sum";
  static constexpr int kThreads = 128;
  bool real = true;
  std::int64_t lines = 0, length = 0;
  std::int64_t y_stride = 0, x_stride = 0;
  Shape shape;
  Operand operands[2];  ///< y, x

  template <typename Block>
  ACCORD_ON_DEVICE void operator()(Block& block) const {
    for (std::size_t line = block.first(); line < static_cast<std::size_t>(lines); line += block.stride()) {
      const Offsets<2> at = offsets_at(shape, operands, static_cast<std::int64_t>(line));
      double sum = 0.0;
      std::uint64_t whole = 0;
      for (std::int64_t i = 0; i < length; ++i) {
        const std::int64_t to = at.of[0] + i * y_stride, from = at.of[1] + i * x_stride;
        if (real) {
          sum += static_cast<double>(device::load_float(operands[1].data, operands[1].dtype, from));
          device::store_float(operands[0].data, operands[0].dtype, to, static_cast<float>(sum));
        } else {
          whole += static_cast<std::uint64_t>(device::load_integer(operands[1].data, operands[1].dtype, from));
          device::store_integer(operands[0].data, operands[0].dtype, to, static_cast<std::int64_t>(whole));
        }
      }
    }
  }
};

}  // namespace accord::engine
