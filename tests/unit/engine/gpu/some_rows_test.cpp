// The kernel for some rows with float8 weights, in blocks of several sizes, compared with plain loops.
#include <gtest/gtest.h>

#include <cmath>

#include "device/numbers.hpp"
#include "engine/gpu/kernels/some_rows_kernel.hpp"
#include "unit/engine/gpu/engines.hpp"

namespace accord::engine {
namespace {

using accord::testing::DeviceArray;
using accord::testing::kGpu;
using accord::testing::some_numbers;

constexpr DType kWeightDType = DType::kFloat8E4M3FN;

std::vector<std::byte> stored_numbers(std::int64_t count, unsigned seed, DType dtype) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(count) * size_of(dtype));
  const std::vector<float> numbers = some_numbers(static_cast<std::size_t>(count), seed);
  for (std::int64_t i = 0; i < count; ++i)
    device::store_float(bytes.data(), dtype, i, numbers[static_cast<std::size_t>(i)]);
  return bytes;
}

struct ProductSizes {
  std::int64_t m = 0, n = 0, k = 0, x_stride = 0;
};

class DeviceSomeRows : public accord::testing::OnAnyDevice<> {
 protected:
  template <DType kDType, int kHigh>
  static void expect_product(const ProductSizes& sizes, bool gated, int threads);
};

/// Runs the kernel with bias and activation, and compares each output with a loop in double.
template <DType kDType, int kHigh>
void DeviceSomeRows::expect_product(const ProductSizes& sizes, bool gated, int threads) {
  SCOPED_TRACE(::testing::Message() << sizes.m << " rows, " << sizes.k << " to " << sizes.n << ", stride "
                                    << sizes.x_stride << ", " << threads << " threads" << (gated ? ", gated" : ""));
  const auto [m, n, k, stride] = sizes;
  const auto x = stored_numbers(m * stride, 1, kDType), weight = stored_numbers(n * k, 2, kWeightDType),
             gate = stored_numbers(n * k, 3, kWeightDType);
  const auto bias = stored_numbers(n, 6, DType::kFloat32), gate_bias = stored_numbers(n, 7, DType::kFloat32);
  const std::vector<float> scales = some_numbers(static_cast<std::size_t>(n), 4);
  const std::vector<float> gate_scales = some_numbers(static_cast<std::size_t>(n), 5);
  const accord::testing::OnDevice on{runtime(), kGpu};
  const DeviceArray on_x(on, x, kDType), on_weight(on, weight, kWeightDType), on_gate(on, gate, kWeightDType);
  const DeviceArray on_bias(on, bias, DType::kFloat32), on_gate_bias(on, gate_bias, DType::kFloat32);
  const DeviceArray on_scales(on, scales, DType::kFloat32), on_gate_scales(on, gate_scales, DType::kFloat32);
  const DeviceArray on_y(on, std::vector<float>(static_cast<std::size_t>((m + 1) * n), -77.0F), DType::kFloat32);
  const auto bytes_of = [](const DeviceArray& array) { return static_cast<const std::byte*>(array.buffer().data); };
  const auto floats_at = [](const DeviceArray& array) { return static_cast<const float*>(array.buffer().data); };
  FewRowsCall call;
  call.dtype = kDType;
  call.m = m;
  call.n = n;
  call.k = k;
  call.x = bytes_of(on_x);
  call.x_row_bytes = stride * 2;
  call.weight = {bytes_of(on_weight), floats_at(on_scales)};
  if (gated) call.gate = {bytes_of(on_gate), floats_at(on_gate_scales)};
  call.bias = bytes_of(on_bias);
  if (gated) call.gate_bias = bytes_of(on_gate_bias);
  call.has_activation = true;
  call.activation = kernels::UnaryOp::kSilu;
  call.y = static_cast<std::byte*>(on_y.buffer().data);
  const SomeRowsProduct<kDType, kHigh> kernel{call};
  const Status launched = device::launch(runtime(), kernel, {2, threads, kernel.kSharedBytes}, kGpu, {});
  ASSERT_TRUE(launched.ok()) << launched.to_string();
  const std::vector<float> y = on_y.values<float>();
  const auto number = [](const std::vector<std::byte>& numbers, DType dtype, std::int64_t at) {
    return double{device::load_float(numbers.data(), dtype, at)};
  };
  for (std::int64_t row = 0; row < m; ++row) {
    for (std::int64_t output = 0; output < n; ++output) {
      double sum = 0.0, by = 0.0;
      for (std::int64_t i = 0; i < k; ++i) {
        sum += number(x, kDType, row * stride + i) * number(weight, kWeightDType, output * k + i);
        by += number(x, kDType, row * stride + i) * number(gate, kWeightDType, output * k + i);
      }
      const auto at = static_cast<std::size_t>(output);
      sum = sum * double{scales[at]} + number(bias, DType::kFloat32, output);
      by = by * double{gate_scales[at]} + number(gate_bias, DType::kFloat32, output);
      const double active = gated ? by / (1 + std::exp(-by)) : sum / (1 + std::exp(-sum));
      const double expected = gated ? sum * active : active;
      ASSERT_NEAR(double{y[static_cast<std::size_t>(row * n + output)]}, expected,
                  1e-4 * std::max(1.0, std::fabs(expected)))
          << "row " << row << ", output " << output;
    }
  }
  for (std::int64_t i = 0; i < n; ++i)
    ASSERT_EQ(y[static_cast<std::size_t>(m * n + i)], -77.0F) << "behind the last row";
}

TEST_P(DeviceSomeRows, float8_weights_are_multiplied_without_conversion) {
  for (const int threads : {32, 96, 256}) {
    for (const bool gated : {false, true}) {
      expect_product<DType::kBFloat16, 1>({9, 37, 80, 80}, gated, threads);
      expect_product<DType::kBFloat16, 2>({31, 64, 16, 16}, gated, threads);
      expect_product<DType::kFloat16, 1>({16, 21, 208, 216}, gated, threads);
      expect_product<DType::kFloat16, 4>({50, 33, 144, 147}, gated, threads);  // rows that begin anywhere
    }
  }
  expect_product<DType::kBFloat16, 4>({64, 40, 576, 576}, true, 256);
  expect_product<DType::kFloat16, 2>({17, 5, 1040, 1040}, false, 256);
}

INSTANTIATE_TEST_SUITE_P(Host, DeviceSomeRows, accord::testing::kHostMemory);
INSTANTIATE_TEST_SUITE_P(Cuda, DeviceSomeRows, accord::testing::kGpus);

}  // namespace
}  // namespace accord::engine
