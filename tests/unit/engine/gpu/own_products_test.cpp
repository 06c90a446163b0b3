// The kernels that multiply rows with weights as they are stored, in blocks of several sizes, compared with plain
// loops.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <memory>

#include "device/numbers.hpp"
#include "engine/gpu/kernels/many_rows_kernel.hpp"
#include "engine/gpu/kernels/some_rows_kernel.hpp"
#include "unit/engine/gpu/engines.hpp"

namespace accord::engine {
namespace {

using accord::testing::DeviceArray;
using accord::testing::kGpu;
using accord::testing::OnDevice;
using accord::testing::some_numbers;

constexpr auto kSameAsRows = WeightKind::kSameAsRows;
constexpr auto kFloat8 = WeightKind::kFloat8;

std::vector<std::byte> stored(const std::vector<float>& numbers, DType dtype) {
  std::vector<std::byte> bytes(numbers.size() * size_of(dtype));
  for (std::size_t i = 0; i < numbers.size(); ++i)
    device::store_float(bytes.data(), dtype, static_cast<std::int64_t>(i), numbers[i]);
  return bytes;
}

double number_at(const std::vector<std::byte>& numbers, DType dtype, std::int64_t at) {
  return double{device::load_float(numbers.data(), dtype, at)};
}

const std::byte* address(const DeviceArray& array) { return static_cast<const std::byte*>(array.buffer().data); }

struct ProductSizes {
  std::int64_t m = 0, n = 0, k = 0;
  std::int64_t x_stride = 0;  ///< 0: no gaps
  int group = 0;              ///< inputs that share a scale; 0: all of an output
};

/// How a kernel under test takes weights.
struct WeightFormat {
  WeightKind kind = kSameAsRows;
  bool gated = false;
  bool rounds = false;  ///< the product of an element and the scale of its group is rounded to the dtype of the rows
};

/// A weight on a device and on the host.
class Matrix {
 public:
  Matrix(const OnDevice& on, const ProductSizes& sizes, DType x_dtype, const WeightFormat& weights, unsigned seed)
      : sizes_(sizes),
        x_dtype_(x_dtype),
        weights_(weights),
        groups_(sizes.group == 0 ? 1 : (sizes.k + sizes.group - 1) / sizes.group),
        data_(stored(some_numbers(static_cast<std::size_t>(sizes.n * sizes.k), seed), dtype())),
        scales_(some_numbers(static_cast<std::size_t>(sizes.n * groups_), seed + 1)),
        on_data_(on, data_, dtype()),
        on_scales_(on, scales_, DType::kFloat32) {}

  WeightOperand operand() const {
    if (weights_.kind == kSameAsRows) return {address(on_data_)};
    return {address(on_data_), reinterpret_cast<const float*>(address(on_scales_)),
            sizes_.group == 0 ? 0 : std::countr_zero(static_cast<unsigned>(sizes_.group))};
  }
  double at(std::int64_t output, std::int64_t input) const {
    const double element = number_at(data_, dtype(), output * sizes_.k + input);
    if (weights_.kind == kSameAsRows) return element;
    const std::int64_t group = sizes_.group == 0 ? 0 : input / sizes_.group;
    const auto scale = double{scales_[static_cast<std::size_t>(group * sizes_.n + output)]};
    if (sizes_.group == 0 || !weights_.rounds) return element * scale;
    return number_at(stored({static_cast<float>(element) * static_cast<float>(scale)}, x_dtype_), x_dtype_, 0);
  }

 private:
  DType dtype() const { return weights_.kind == kFloat8 ? DType::kFloat8E4M3FN : x_dtype_; }

  const ProductSizes sizes_;
  const DType x_dtype_;
  const WeightFormat weights_;
  const std::int64_t groups_;
  const std::vector<std::byte> data_;
  const std::vector<float> scales_;
  const DeviceArray on_data_, on_scales_;
};

/// A layer with biases and an activation, whose outputs have a row more than is computed.
class Layer {
 public:
  Layer(const OnDevice& on, const ProductSizes& sizes, DType dtype, const WeightFormat& weights, unsigned seed)
      : sizes_(sizes),
        dtype_(dtype),
        gated_(weights.gated),
        weight_(on, sizes, dtype, weights, seed),
        gate_(on, sizes, dtype, weights, seed + 2),
        bias_(some_numbers(static_cast<std::size_t>(sizes.n), seed + 4)),
        gate_bias_(some_numbers(static_cast<std::size_t>(sizes.n), seed + 5)),
        on_bias_(on, bias_, DType::kFloat32),
        on_gate_bias_(on, gate_bias_, DType::kFloat32),
        y_(on, std::vector<float>(static_cast<std::size_t>((sizes.m + 1) * sizes.n), kUntouched), DType::kFloat32) {}

  ProductCall call(const DeviceArray& x) const {
    ProductCall call;
    call.dtype = dtype_;
    call.m = sizes_.m;
    call.n = sizes_.n;
    call.k = sizes_.k;
    call.x = address(x);
    call.x_row_bytes = sizes_.x_stride * static_cast<std::int64_t>(size_of(dtype_));
    call.weight = weight_.operand();
    if (gated_) call.gate = gate_.operand();
    call.bias = address(on_bias_);
    if (gated_) call.gate_bias = address(on_gate_bias_);
    call.activation = kernels::Activation::kSilu;
    call.y = y_.buffer().data;
    return call;
  }

  void expect_outputs(const std::vector<std::byte>& x) const {
    const std::vector<float> y = y_.values<float>();
    for (std::int64_t row = 0; row < sizes_.m; ++row) {
      for (std::int64_t output = 0; output < sizes_.n; ++output) {
        double sum = 0.0, by = 0.0, sum_of_sizes = 0.0, by_of_sizes = 0.0;
        const auto add = [](double term, double& to, double& of_sizes) {
          to += term;
          of_sizes += std::fabs(term);
        };
        for (std::int64_t i = 0; i < sizes_.k; ++i) {
          const double each = number_at(x, dtype_, row * sizes_.x_stride + i);
          add(each * weight_.at(output, i), sum, sum_of_sizes);
          if (gated_) add(each * gate_.at(output, i), by, by_of_sizes);
        }
        const auto at = static_cast<std::size_t>(output);
        sum += double{bias_[at]};
        by += double{gate_bias_[at]};
        const double active = gated_ ? by / (1 + std::exp(-by)) : sum / (1 + std::exp(-sum));
        const double expected = gated_ ? sum * active : active;
        // Sums in float32 err. A gate and its factor multiply each other's errors. SiLU is at most 1.1 times as steep.
        constexpr double kEach = 1e-6;
        const double error_of_sum = kEach * (sum_of_sizes + 1.0), error_of_by = kEach * (by_of_sizes + 1.0);
        const double error =
            gated_ ? std::fabs(active) * error_of_sum + 1.1 * std::fabs(sum) * error_of_by : 1.1 * error_of_sum;
        ASSERT_NEAR(double{y[static_cast<std::size_t>(row * sizes_.n + output)]}, expected, error + kEach)
            << "row " << row << ", output " << output;
      }
    }
    for (std::int64_t i = 0; i < sizes_.n; ++i)
      ASSERT_EQ(y[static_cast<std::size_t>(sizes_.m * sizes_.n + i)], kUntouched) << "behind the last row";
  }

 private:
  static constexpr float kUntouched = -77.0F;
  const ProductSizes sizes_;
  const DType dtype_;
  const bool gated_;
  const Matrix weight_, gate_;
  const std::vector<float> bias_, gate_bias_;
  const DeviceArray on_bias_, on_gate_bias_, y_;
};

class DeviceProducts : public accord::testing::OnAnyDevice<> {
 protected:
  /// Computes layers with `n`, `n` + 3, .. outputs in one launch. `make`: returns the kernel and its shared memory.
  template <typename Make>
  static void expect_layers(ProductSizes sizes, DType dtype, const WeightFormat& weights, int count, int threads,
                            const Make& make) {
    SCOPED_TRACE(::testing::Message() << to_string(dtype) << ", " << sizes.m << " rows, " << sizes.k << " to "
                                      << sizes.n << ", stride " << sizes.x_stride << ", groups of " << sizes.group
                                      << ", " << count << " layers, " << threads << " threads"
                                      << (weights.gated ? ", gated" : ""));
    if (sizes.x_stride == 0) sizes.x_stride = sizes.k;
    const OnDevice on{runtime(), kGpu};
    const std::vector<std::byte> x = stored(some_numbers(static_cast<std::size_t>(sizes.m * sizes.x_stride), 1), dtype);
    const DeviceArray on_x(on, x, dtype);
    std::vector<std::unique_ptr<Layer>> layers;
    ProductCalls calls;
    for (int i = 0; i < count; ++i, sizes.n += 3) {
      layers.push_back(std::make_unique<Layer>(on, sizes, dtype, weights, static_cast<unsigned>(10 + i * 7)));
      calls.of[calls.count++] = layers.back()->call(on_x);
    }
    const auto [kernel, shared_bytes] = make(calls);
    const Status launched = device::launch(runtime(), kernel, {2, threads, shared_bytes}, kGpu, {});
    ASSERT_TRUE(launched.ok()) << launched.to_string();
    for (const auto& layer : layers) layer->expect_outputs(x);
  }

  template <int kRows, WeightKind kWeights>
  static void expect_few(const ProductSizes& sizes, DType dtype, bool gated, int count) {
    expect_layers(sizes, dtype, {kWeights, gated, false}, count, 64, [](const ProductCalls& calls) {
      return std::pair{FewRowsProduct<kRows, kWeights>{calls}, std::size_t{0}};
    });
  }
  template <DType kDType, WeightKind kWeights, int kRows>
  static void expect_some(const ProductSizes& sizes, bool gated, int count, int threads) {
    using Kernel = SomeRowsProduct<kDType, kWeights, kRows>;
    expect_layers(sizes, kDType, {kWeights, gated, true}, count, threads, [](const ProductCalls& calls) {
      return std::pair{Kernel{calls}, Kernel::kSharedBytes};
    });
  }
  template <DType kDType>
  static void expect_many(const ProductSizes& sizes, bool gated, int threads) {
    using Kernel = ManyRowsProduct<kDType>;
    expect_layers(sizes, kDType, {kFloat8, gated, true}, 1, threads, [](const ProductCalls& calls) {
      return std::pair{Kernel{calls.of[0]}, Kernel::kSharedBytes};
    });
  }
};

TEST_P(DeviceProducts, few_rows_are_multiplied_with_several_weights_in_one_launch) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    for (const bool gated : {false, true}) {
      expect_few<1, kSameAsRows>({1, 5, 160}, dtype, gated, 4);
      expect_few<2, kSameAsRows>({2, 17, 37}, dtype, gated, 3);  // one by one
      expect_few<4, kSameAsRows>({3, 9, 64, 70}, dtype, gated, 2);
      expect_few<8, kSameAsRows>({7, 21, 160}, dtype, gated, 1);
      expect_few<1, kFloat8>({1, 6, 160}, dtype, gated, 3);
      expect_few<8, kFloat8>({7, 21, 37}, dtype, gated, 2);
      expect_few<2, kFloat8>({2, 12, 208, 0, 64}, dtype, gated, 2);
      expect_few<8, kFloat8>({5, 7, 144, 0, 16}, dtype, gated, 1);
      expect_few<4, kFloat8>({4, 7, 41, 0, 32}, dtype, gated, 1);
    }
  }
}

TEST_P(DeviceProducts, eight_rows_are_multiplied_on_tensor_cores) {
  for (const int threads : {32, 96, 256}) {
    for (const bool gated : {false, true}) {
      expect_some<DType::kBFloat16, kSameAsRows, 8>({3, 37, 80}, gated, 1, threads);
      expect_some<DType::kBFloat16, kSameAsRows, 8>({8, 16, 264, 280}, gated, 4, threads);
      expect_some<DType::kFloat16, kSameAsRows, 8>({5, 20, 8}, gated, 3, threads);
      expect_some<DType::kFloat16, kFloat8, 8>({7, 40, 592}, gated, 2, threads);
      expect_some<DType::kBFloat16, kFloat8, 8>({6, 12, 144, 0, 16}, gated, 2, threads);
    }
  }
  expect_some<DType::kBFloat16, kSameAsRows, 8>({8, 40, 1600}, true, 2, 256);
}

TEST_P(DeviceProducts, some_rows_are_multiplied_with_unconverted_float8) {
  for (const int threads : {32, 96, 256}) {
    for (const bool gated : {false, true}) {
      expect_some<DType::kBFloat16, kFloat8, 16>({9, 37, 80}, gated, 1, threads);
      expect_some<DType::kBFloat16, kFloat8, 32>({31, 64, 16}, gated, 2, threads);
      expect_some<DType::kFloat16, kFloat8, 16>({16, 21, 208, 216}, gated, 2, threads);
      expect_some<DType::kFloat16, kFloat8, 64>({50, 33, 144, 160}, gated, 1, threads);
      expect_some<DType::kBFloat16, kFloat8, 32>({20, 33, 272, 0, 128}, gated, 2, threads);
    }
  }
  expect_some<DType::kBFloat16, kFloat8, 64>({64, 40, 576, 0, 32}, true, 1, 256);
  expect_some<DType::kFloat16, kFloat8, 32>({17, 5, 1040}, false, 1, 256);
}

TEST_P(DeviceProducts, many_rows_are_multiplied_with_unconverted_float8) {
  for (const int threads : {32, 96, 128}) {
    for (const bool gated : {false, true}) {
      expect_many<DType::kBFloat16>({70, 37, 80}, gated, threads);
      expect_many<DType::kFloat16>({129, 132, 208, 216}, gated, threads);
      expect_many<DType::kBFloat16>({66, 68, 272, 0, 128}, gated, threads);
    }
  }
  expect_many<DType::kBFloat16>({65, 72, 400, 0, 64}, true, 128);
  expect_many<DType::kFloat16>({65, 132, 144, 0, 16}, false, 128);
  expect_many<DType::kBFloat16>({65, 20, 112, 0, 32}, true, 128);
}

INSTANTIATE_TEST_SUITE_P(Host, DeviceProducts, accord::testing::kHostMemory);
INSTANTIATE_TEST_SUITE_P(Cuda, DeviceProducts, accord::testing::kGpus);

}  // namespace
}  // namespace accord::engine
