// Kernels and products of float8 on the tests' devices, compared with loops over numbers that HalfReference decodes
// by definition.
#include <gmock/gmock.h>

#include "device/device_memory.hpp"
#include "engine/gpu/kernels/float8_kernels.hpp"
#include "engine/gpu/kernels/product_kernel.hpp"
#include "unit/engine/gpu/engines.hpp"
#include "unit/kernels/half_reference.hpp"

namespace accord::engine {
namespace {

using accord::testing::DeviceArray;
using accord::testing::HostBlas;
using accord::testing::kGpu;
using accord::testing::OnDevice;
using accord::testing::some_numbers;
using kernels::HalfReference;

constexpr DType kFloat8 = DType::kFloat8E4M3FN;

float number_of(std::uint8_t code) { return static_cast<float>(HalfReference::float8_e4m3fn().decode(code)); }
std::uint8_t code_of(float x) {
  return static_cast<std::uint8_t>(HalfReference::float8_e4m3fn().encode(static_cast<double>(x)));
}

std::vector<std::uint8_t> codes_of(const std::vector<float>& values) {
  std::vector<std::uint8_t> codes;
  for (const float value : values) codes.push_back(code_of(value));
  return codes;
}

std::vector<float> some_scales(std::size_t count) {
  std::vector<float> scales = some_numbers(count, 9);
  for (float& scale : scales) scale = std::fabs(scale) + 0.25F;
  return scales;
}

std::vector<std::byte> stored(const std::vector<float>& values, DType dtype) {
  std::vector<std::byte> bytes(values.size() * size_of(dtype));
  for (std::size_t i = 0; i < values.size(); ++i)
    device::store_float(bytes.data(), dtype, static_cast<std::int64_t>(i), values[i]);
  return bytes;
}

std::vector<float> loaded(const std::vector<std::byte>& bytes, DType dtype) {
  std::vector<float> values;
  for (std::size_t i = 0; i < bytes.size() / size_of(dtype); ++i)
    values.push_back(device::load_float(bytes.data(), dtype, static_cast<std::int64_t>(i)));
  return values;
}

float rounded(DType dtype, float x) { return loaded(stored({x}, dtype), dtype)[0]; }

class Float8OnDevices : public accord::testing::DeviceEngines {
 protected:
  using DeviceEngines::DeviceEngines;
  OnDevice on() const { return {runtime(), kGpu}; }
  template <typename K>
  void launch(const K& kernel) {
    const device::Grid grid{.blocks = 3, .threads = 64};
    const Status status = device::launch(runtime(), kernel, grid, kGpu, {});
    ASSERT_TRUE(status.ok()) << status.to_string();
    on().synchronize();
  }
  const std::byte* address(const DeviceArray& array) { return static_cast<const std::byte*>(array.buffer().data); }
  std::byte* writable(const DeviceArray& array) { return static_cast<std::byte*>(array.buffer().data); }
};

class DeviceFloat8 : public accord::testing::OnAnyDevice<Float8OnDevices> {};
/// HostBlas's products. Those of cuBLASLt have their own tests.
class HostFloat8 : public Float8OnDevices {};

constexpr DType kWide[] = {DType::kFloat32, DType::kBFloat16, DType::kFloat16};

TEST_P(DeviceFloat8, rows_are_rounded_with_their_own_scale) {
  constexpr std::int64_t kRows = 7, kWidth = 48, kStride = 53;
  for (const DType dtype : kWide) {
    for (const std::int64_t stride : {kWidth, kStride}) {  // in the second, rows begin anywhere
      std::vector<float> x = some_numbers(static_cast<std::size_t>(kRows * stride), 3);
      for (std::int64_t i = 0; i < kWidth; ++i) {
        x[static_cast<std::size_t>(2 * stride + i)] = 0.0F;
        x[static_cast<std::size_t>(3 * stride + i)] *= 1e-3F;
        x[static_cast<std::size_t>(4 * stride + i)] *= 1e4F;
      }
      x[static_cast<std::size_t>(5 * stride + 7)] = NAN;
      const DeviceArray on_x(on(), stored(x, dtype), dtype);
      const DeviceArray y(on(), std::vector<std::uint8_t>(kRows * kWidth, 0xAA), kFloat8);
      const DeviceArray scales(on(), std::vector<float>(kRows, -1.0F), DType::kFloat32);
      launch(RoundRows{address(on_x), dtype, stride * static_cast<std::int64_t>(size_of(dtype)), kRows, kWidth,
                       writable(y), reinterpret_cast<float*>(writable(scales))});
      const std::vector<std::uint8_t> codes = y.values<std::uint8_t>();
      const std::vector<float> found = scales.values<float>();
      for (std::int64_t row = 0; row < kRows; ++row) {
        float largest = 0.0F;
        for (std::int64_t i = 0; i < kWidth; ++i) {
          const float its = std::fabs(rounded(dtype, x[static_cast<std::size_t>(row * stride + i)]));
          if (its > largest) largest = its;
        }
        const float scale = found[static_cast<std::size_t>(row)];
        EXPECT_EQ(scale, largest / 448.0F) << "row " << row;
        for (std::int64_t i = 0; i < kWidth; ++i) {
          const float its = rounded(dtype, x[static_cast<std::size_t>(row * stride + i)]);
          const std::uint8_t expected = scale == 0.0F ? std::uint8_t{0} : code_of(its / scale);
          EXPECT_EQ(codes[static_cast<std::size_t>(row * kWidth + i)], expected) << "row " << row << ", " << i;
        }
      }
    }
  }
}

TEST_P(DeviceFloat8, rows_of_a_table_are_widened_by_their_ids) {
  constexpr std::int64_t kTable = 6, kFirst = 10, kInAll = 20;
  const std::vector<std::int64_t> ids = {12, 15, 10, 3, 19, 12, 25, 10};  // 3 and 19 belong to other ranks, 25 to none
  for (const DType dtype : kWide) {
    for (const std::int64_t width : {std::int64_t{32}, std::int64_t{13}}) {
      const std::vector<std::uint8_t> table = codes_of(some_numbers(static_cast<std::size_t>(kTable * width), 2));
      const std::vector<float> scales = some_scales(kTable);
      const DeviceArray on_table(on(), table, kFloat8), on_scales(on(), scales, DType::kFloat32);
      const DeviceArray on_ids(on(), ids, DType::kInt64);
      const DeviceArray y(on(), std::vector<std::byte>(ids.size() * static_cast<std::size_t>(width) * size_of(dtype)),
                          dtype);
      const DeviceArray fault(on(), std::vector<std::byte>(sizeof(Fault)), DType::kUInt8);
      WidenRows kernel;
      kernel.table = {address(on_table), reinterpret_cast<const float*>(address(on_scales))};
      kernel.ids = address(on_ids);
      kernel.count = static_cast<std::int64_t>(ids.size());
      kernel.width = width;
      kernel.table_rows = kTable;
      kernel.first_row = kFirst;
      kernel.total_rows = kInAll;
      kernel.y = writable(y);
      kernel.y_dtype = dtype;
      kernel.report.fault = reinterpret_cast<Fault*>(writable(fault));
      launch(kernel);
      const std::vector<float> found = loaded(y.bytes(), dtype);
      for (std::size_t i = 0; i < found.size(); ++i) {
        const std::int64_t row = ids[i / static_cast<std::size_t>(width)] - kFirst;
        float expected = 0.0F;
        if (row >= 0 && row < kTable) {
          const auto at = static_cast<std::size_t>(row * width) + i % static_cast<std::size_t>(width);
          expected = rounded(dtype, number_of(table[at]) * scales[static_cast<std::size_t>(row)]);
        }
        ASSERT_EQ(found[i], expected) << to_string(dtype) << ", element " << i;
      }
      const Fault reported = fault.values<Fault>()[0];
      EXPECT_EQ(reported.count, 1U);
      EXPECT_EQ(reported.id, 25);
      EXPECT_EQ(reported.position, 6);
    }
  }
}

TEST_F(HostFloat8, products_of_the_library_accept_scales_of_rows_and_columns) {
  constexpr std::int64_t kM = 11, kN = 32, kK = 48;
  const std::vector<std::uint8_t> a = codes_of(some_numbers(kM * kK, 1)), b = codes_of(some_numbers(kN * kK, 2));
  const std::vector<float> rows = some_scales(kM), columns = some_scales(kN), bias = some_numbers(kN, 3);
  const DeviceArray on_a(on(), a, kFloat8), on_b(on(), b, kFloat8);
  const DeviceArray on_rows(on(), rows, DType::kFloat32), on_columns(on(), columns, DType::kFloat32);
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    const DeviceArray on_bias(on(), stored(bias, dtype), dtype);
    const DeviceArray y(on(), std::vector<std::byte>(kM * kN * 2), dtype), scaled(on(), y.bytes(), dtype);
    const DeviceArray sums(on(), std::vector<float>(kM * kN), DType::kFloat32);
    device::Product product;
    product.m = kM;
    product.n = kN;
    product.k = kK;
    product.a = {address(on_a), kFloat8, kK, 0};
    product.b = {address(on_b), kFloat8, kK, 0};
    product.c = {address(y), dtype, kN, 0};
    product.bias = address(on_bias);
    product.a_scales = reinterpret_cast<const float*>(address(on_rows));
    product.b_scales = reinterpret_cast<const float*>(address(on_columns));
    ASSERT_TRUE(HostBlas::instance().multiply(product, kGpu, {}).ok());
    // Does the same in two steps, as where the library takes no scales.
    product.c = {address(sums), DType::kFloat32, kN, 0};
    EXPECT_EQ(HostBlas::instance().multiply(product, kGpu, {}).code(), StatusCode::kUnsupported) << "a bias of float32";
    product.bias = product.a_scales = product.b_scales = nullptr;
    ASSERT_TRUE(HostBlas::instance().multiply(product, kGpu, {}).ok());
    launch(ScaleSums{address(sums), kM, kN, reinterpret_cast<const float*>(address(on_rows)),
                     reinterpret_cast<const float*>(address(on_columns)), address(on_bias), writable(scaled), dtype});
    const std::vector<float> found = loaded(y.bytes(), dtype), in_two = loaded(scaled.bytes(), dtype);
    for (std::size_t row = 0; row < kM; ++row) {
      for (std::size_t column = 0; column < kN; ++column) {
        double sum = 0.0;
        for (std::size_t i = 0; i < kK; ++i)
          sum += static_cast<double>(number_of(a[row * kK + i])) * static_cast<double>(number_of(b[column * kK + i]));
        sum *= static_cast<double>(rows[row]) * static_cast<double>(columns[column]);
        sum += static_cast<double>(rounded(dtype, bias[column]));
        const double tolerance = 0.005 * std::max(1.0, std::fabs(sum));
        ASSERT_NEAR(static_cast<double>(found[row * kN + column]), sum, tolerance);
        ASSERT_NEAR(static_cast<double>(in_two[row * kN + column]), sum, tolerance);
      }
    }
  }
}

TEST_F(HostFloat8, products_that_the_library_does_not_support_are_rejected) {
  const DeviceArray memory(on(), std::vector<float>(64 * 64), DType::kFloat32);
  const auto multiply = [&](auto change) {
    device::Product product;
    product.m = product.n = product.k = 32;
    product.a = product.b = {address(memory), kFloat8, 32, 0};
    product.c = {address(memory), DType::kBFloat16, 32, 0};
    product.a_scales = product.b_scales = reinterpret_cast<const float*>(address(memory));
    change(product);
    return HostBlas::instance().multiply(product, kGpu, {}).code();
  };
  EXPECT_EQ(multiply([](device::Product& p) { p.m = 5; }), StatusCode::kOk);
  EXPECT_EQ(multiply([](device::Product& p) { p.n = 24; }), StatusCode::kUnsupported);
  EXPECT_EQ(multiply([](device::Product& p) { p.k = 24; }), StatusCode::kUnsupported);
  EXPECT_EQ(multiply([](device::Product& p) { p.b_scales = nullptr; }), StatusCode::kUnsupported);
  EXPECT_EQ(multiply([](device::Product& p) { p.epilogue = device::Epilogue::kRelu; }), StatusCode::kUnsupported);
  EXPECT_EQ(multiply([](device::Product& p) { p.second_layout = device::SecondLayout::kColumns; }),
            StatusCode::kUnsupported);
  EXPECT_EQ(multiply([](device::Product& p) { p.c.dtype = kFloat8; }), StatusCode::kUnsupported);
  HostBlas::instance().set_takes_scales(false);
  EXPECT_EQ(multiply([](device::Product&) {}), StatusCode::kUnsupported);
  HostBlas::instance().set_takes_scales(true);
}

INSTANTIATE_TEST_SUITE_P(Host, DeviceFloat8, accord::testing::kHostMemory);
INSTANTIATE_TEST_SUITE_P(Cuda, DeviceFloat8, accord::testing::kGpus);

}  // namespace
}  // namespace accord::engine
