// cuBLASLt's products on a GPU: float8, compared with loops over numbers that HalfReference decodes by definition, and
// the choice among its kernels.
#include <gtest/gtest.h>

#if __has_include(<cublasLt.h>)

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "device/cuda/blas.hpp"
#include "device/cuda/runtime.hpp"
#include "device/device_memory.hpp"
#include "device/numbers.hpp"
#include "device/product_timing.hpp"
#include "unit/kernels/half_reference.hpp"

namespace accord::device {
namespace {

using accord::testing::DeviceArray;
using accord::testing::OnDevice;

constexpr Device kGpu{DeviceType::kCuda, 0};
constexpr DType kFloat8 = DType::kFloat8E4M3FN;

double number_of(std::uint8_t code) { return kernels::HalfReference::float8_e4m3fn().decode(code); }

/// a [m, k] and b [n, k] in float8 with scales, and a bias.
struct CudaProducts : ::testing::TestWithParam<std::int64_t> {
  static constexpr std::int64_t kN = 64, kK = 160;
  const std::int64_t m = GetParam();
  std::mt19937 random{5};

  std::vector<float> numbers(std::int64_t count, float low, float high) {
    std::uniform_real_distribution<float> values(low, high);
    std::vector<float> made(static_cast<std::size_t>(count));
    for (float& each : made) each = values(random);
    return made;
  }
  std::vector<std::uint8_t> codes(std::int64_t count) {
    std::vector<std::uint8_t> made;
    for (const float each : numbers(count, -8.0F, 8.0F)) made.push_back(to_float8_e4m3fn(each));
    return made;
  }
};

TEST_P(CudaProducts, of_float8_use_scales_of_rows_and_columns_where_the_library_supports_them) {
  if (const Status viable = cuda::runtime().viable(); !viable.ok()) GTEST_SKIP() << viable.to_string();
  const Result<Blas*> blas = cuda::blas();
  if (!blas.ok()) GTEST_SKIP() << blas.status().to_string();
  const OnDevice on{cuda::runtime(), kGpu};
  const std::vector<std::uint8_t> a = codes(m * kK), b = codes(kN * kK);
  const std::vector<float> rows = numbers(m, 0.25F, 2.0F), columns = numbers(kN, 0.25F, 2.0F);
  std::vector<std::uint16_t> bias;
  for (const float each : numbers(kN, -50.0F, 50.0F)) bias.push_back(to_bfloat16(each));
  const DeviceArray on_a(on, a, kFloat8), on_b(on, b, kFloat8), on_bias(on, bias, DType::kBFloat16);
  const DeviceArray on_rows(on, rows, DType::kFloat32), on_columns(on, columns, DType::kFloat32);
  const DeviceArray workspace(on, std::vector<std::byte>((*blas)->workspace_bytes()), DType::kUInt8);
  const DeviceArray sums(on, std::vector<float>(static_cast<std::size_t>(m * kN)), DType::kFloat32);
  const DeviceArray scaled(on, std::vector<std::uint16_t>(static_cast<std::size_t>(m * kN)), DType::kBFloat16);

  Product product;
  product.m = m;
  product.n = kN;
  product.k = kK;
  product.a = {on_a.buffer().data, kFloat8, kK, 0};
  product.b = {on_b.buffer().data, kFloat8, kK, 0};
  product.c = {sums.buffer().data, DType::kFloat32, kN, 0};
  product.workspace = workspace.buffer().data;
  const auto has = [&] {
    const Result<bool> supported = (*blas)->has(product, kGpu);
    return supported.ok() && *supported;
  };
  EXPECT_TRUE(has());
  Status status = (*blas)->multiply(product, kGpu, {});
  ASSERT_TRUE(status.ok()) << status.to_string();
  const Result<bool> takes_scales = (*blas)->takes_scales(kGpu);
  ASSERT_TRUE(takes_scales.ok()) << takes_scales.status().to_string();
  if (*takes_scales) {
    product.c = {scaled.buffer().data, DType::kBFloat16, kN, 0};
    product.bias = on_bias.buffer().data;
    product.a_scales = static_cast<const float*>(on_rows.buffer().data);
    product.b_scales = static_cast<const float*>(on_columns.buffer().data);
    EXPECT_TRUE(has());
    status = (*blas)->multiply(product, kGpu, {});
    ASSERT_TRUE(status.ok()) << status.to_string();
  }

  const std::vector<float> found = sums.values<float>();
  const std::vector<std::uint16_t> with_scales = scaled.values<std::uint16_t>();
  for (std::int64_t row = 0; row < m; ++row) {
    for (std::int64_t column = 0; column < kN; ++column) {
      double sum = 0.0, magnitudes = 0.0;
      for (std::int64_t i = 0; i < kK; ++i) {
        const double each = number_of(a[static_cast<std::size_t>(row * kK + i)]) *
                            number_of(b[static_cast<std::size_t>(column * kK + i)]);
        sum += each;
        magnitudes += std::fabs(each);
      }
      // Tensor cores for float8 add with fewer bits than float32 has.
      const auto at = static_cast<std::size_t>(row * kN + column);
      ASSERT_NEAR(static_cast<double>(found[at]), sum, 1e-3 * magnitudes) << row << ", " << column;
      if (!*takes_scales) continue;
      const double factor = static_cast<double>(rows[static_cast<std::size_t>(row)]) *
                            static_cast<double>(columns[static_cast<std::size_t>(column)]);
      const double expected = sum * factor + static_cast<double>(from_bfloat16(bias[static_cast<std::size_t>(column)]));
      ASSERT_NEAR(static_cast<double>(from_bfloat16(with_scales[at])), expected,
                  1e-3 * magnitudes * factor + 0.005 * std::fabs(expected))
          << row << ", " << column;
    }
  }
}

TEST_P(CudaProducts, keep_the_fastest_kernel_for_about_as_many_rows) {
  if (const Status viable = cuda::runtime().viable(); !viable.ok()) GTEST_SKIP() << viable.to_string();
  const Result<Blas*> blas = cuda::blas();
  if (!blas.ok()) GTEST_SKIP() << blas.status().to_string();
  constexpr std::int64_t kOutputs = 512, kInputs = 1024;
  const OnDevice on{cuda::runtime(), kGpu};
  const std::int64_t rows = rows_like(m);
  const std::vector<std::uint16_t> ones(static_cast<std::size_t>(std::max(kOutputs, rows) * kInputs),
                                        to_bfloat16(1.0F));
  const DeviceArray on_a(on, ones, DType::kBFloat16), on_b(on, ones, DType::kBFloat16);
  const DeviceArray on_c(on, std::vector<std::uint16_t>(static_cast<std::size_t>(rows * kOutputs)), DType::kBFloat16);
  const DeviceArray workspace(on, std::vector<std::byte>((*blas)->workspace_bytes()), DType::kUInt8);
  Product product;
  product.m = m;
  product.n = kOutputs;
  product.k = kInputs;
  product.a = {on_a.buffer().data, DType::kBFloat16, kInputs, 0};
  product.b = {on_b.buffer().data, DType::kBFloat16, kInputs, 0};
  product.c = {on_c.buffer().data, DType::kBFloat16, kOutputs, 0};
  product.workspace = workspace.buffer().data;
  product.uses_choice = true;
  Result<int> candidates = (*blas)->candidates(product, kGpu);
  ASSERT_TRUE(candidates.ok()) << candidates.status().to_string();
  EXPECT_GT(*candidates, 1);
  const Status chosen = choose_fastest(**blas, cuda::runtime(), product, kGpu, {});
  ASSERT_TRUE(chosen.ok()) << chosen.to_string();
  product.m = rows;
  ASSERT_TRUE((*blas)->multiply(product, kGpu, {}).ok());
  candidates = (*blas)->candidates(product, kGpu);
  ASSERT_TRUE(candidates.ok()) << candidates.status().to_string();
  EXPECT_EQ(*candidates, 1);
  product.uses_choice = false;
  candidates = (*blas)->candidates(product, kGpu);
  ASSERT_TRUE(candidates.ok()) << candidates.status().to_string();
  EXPECT_GT(*candidates, 1) << "products that need the same bits everywhere";
  for (const std::uint16_t sum : on_c.values<std::uint16_t>()) ASSERT_EQ(from_bfloat16(sum), float{kInputs});
}

INSTANTIATE_TEST_SUITE_P(, CudaProducts, ::testing::Values(9, 33, 128),
                         [](const auto& instance) { return std::to_string(instance.param) + "_rows"; });

}  // namespace
}  // namespace accord::device

#endif
