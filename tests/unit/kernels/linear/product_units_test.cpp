// Products with weights that are stored as units of a sharded tensor, of which the last may be shorter.

#include <algorithm>

#include "kernels/linear/product.hpp"
#include "linear_case.hpp"

namespace accord::kernels {
namespace {

const PackedFormat kFloat32{WeightType::kFloat32};
const PackedFormat kBFloat16{WeightType::kBFloat16};

class ProductOfUnits : public EveryPanelKernel {};
ACCORD_WITH_EVERY_PANEL_KERNEL(ProductOfUnits);

TEST_P(ProductOfUnits, reads_the_units_of_a_shard) {
  constexpr std::int64_t kUnit = 48, kUnits = 3, kOther = 70;
  for (const PackedFormat& format : {kBFloat16, kInt8, kInt4WithMinima, kSuperInt4, kSuperInt5, kSuperInt6}) {
    std::vector<TestWeight> units;
    for (unsigned unit = 0; unit < kUnits; ++unit) units.emplace_back(format, kUnit, kOther, 20 + unit);
    const std::size_t bytes = packed_bytes(format, kUnit, kOther);
    AlignedVector together(kUnits * (bytes + 64));
    for (std::size_t unit = 0; unit < kUnits; ++unit) {
      std::memcpy(together.data() + unit * (bytes + 64), units[unit].matrix.data, bytes);
    }
    // The same blocks as consecutive outputs, and as inputs.
    const std::vector<float> x = random_floats(kUnits * kOther, 21);
    PackedMatrix columns = packed_matrix(format, kUnit, kOther, together.data()), rows = columns;
    columns.out_units = rows.in_units = kUnits;
    columns.out_unit_stride = rows.in_unit_stride = static_cast<std::int64_t>(bytes + 64);
    std::vector<float> y(kUnit * kUnits), sums(kUnit);
    ProductCall call;
    call.weights = &columns;
    call.y = {y.data(), DType::kFloat32, kUnit * kUnits};
    ASSERT_TRUE(run(call, {x.data(), DType::kFloat32, kOther}, Arithmetic::kFloat32, 1).ok());
    call.weights = &rows;
    call.y = {sums.data(), DType::kFloat32, kUnit};
    ASSERT_TRUE(run(call, {x.data(), DType::kFloat32, kUnits * kOther}, Arithmetic::kFloat32, 1).ok());
    for (std::int64_t output = 0; output < kUnit; ++output) {
      double sum_of_units = 0.0;
      for (std::int64_t unit = 0; unit < kUnits; ++unit) {
        const TestWeight& weight = units[static_cast<std::size_t>(unit)];
        double alone = 0.0;
        for (std::int64_t i = 0; i < kOther; ++i) {
          const std::size_t at = static_cast<std::size_t>(output * kOther + i);
          const double w = weight.scaled[at] + weight.minima[at];
          alone += static_cast<double>(x[static_cast<std::size_t>(i)]) * w;
          sum_of_units += static_cast<double>(x[static_cast<std::size_t>(unit * kOther + i)]) * w;
        }
        ASSERT_NEAR(static_cast<double>(y[static_cast<std::size_t>(unit * kUnit + output)]), alone, 2e-4);
      }
      ASSERT_NEAR(static_cast<double>(sums[static_cast<std::size_t>(output)]), sum_of_units, 4e-4);
    }
  }
}

TEST_P(ProductOfUnits, skips_the_padding_of_the_last_unit) {
  constexpr std::int64_t kUnit = 80, kUnits = 2, kOther = 64, kPadding = 70;  // more than a panel
  for (const PackedFormat& format : {kFloat32, kInt8, kSuperInt5}) {
    const TestWeight unit(format, kUnit, kOther, 40);
    const std::size_t bytes = packed_bytes(format, kUnit, kOther);
    AlignedVector together(kUnits * bytes);
    for (std::size_t i = 0; i < kUnits; ++i) std::memcpy(together.data() + i * bytes, unit.matrix.data, bytes);
    PackedMatrix whole = packed_matrix(format, kUnit, kOther, together.data());
    whole.out_units = kUnits;
    whole.out_unit_stride = static_cast<std::int64_t>(bytes);
    PackedMatrix shorter = whole;
    shorter.out_padding = kPadding;
    const std::vector<float> x = random_floats(kOther, 41);
    std::vector<float> y(kUnit * kUnits), short_y(kUnit * kUnits, -1.0F);
    ProductCall call;
    call.weights = &whole;
    call.y = {y.data(), DType::kFloat32, whole.out()};
    ASSERT_TRUE(run(call, {x.data(), DType::kFloat32, kOther}, Arithmetic::kFloat32, 1).ok());
    call.weights = &shorter;
    call.y = {short_y.data(), DType::kFloat32, shorter.out()};
    ASSERT_TRUE(run(call, {x.data(), DType::kFloat32, kOther}, Arithmetic::kFloat32, 1).ok());
    for (std::size_t i = 0; i < y.size(); ++i) {
      ASSERT_EQ(short_y[i], i < kUnit * kUnits - kPadding ? y[i] : -1.0F) << i;
    }
    // As inputs: those of the padding count as zeros, whatever follows the row.
    PackedMatrix wide = packed_matrix(format, kUnit, kOther, together.data());
    wide.in_units = kUnits;
    wide.in_unit_stride = static_cast<std::int64_t>(bytes);
    PackedMatrix narrower = wide;
    narrower.in_padding = kOther - 6;
    std::vector<float> row = random_floats(kUnits * kOther, 42);
    std::fill(row.begin() + kOther + 6, row.end(), 0.0F);
    call.weights = &wide;
    call.y = {y.data(), DType::kFloat32, kUnit};
    ASSERT_TRUE(run(call, {row.data(), DType::kFloat32, kUnits * kOther}, Arithmetic::kFloat32, 1).ok());
    std::fill(row.begin() + kOther + 6, row.end(), 1e30F);
    call.weights = &narrower;
    call.y = {short_y.data(), DType::kFloat32, kUnit};
    ASSERT_TRUE(run(call, {row.data(), DType::kFloat32, kUnits * kOther}, Arithmetic::kFloat32, 1).ok());
    for (std::size_t i = 0; i < kUnit; ++i) ASSERT_EQ(short_y[i], y[i]) << i;
    std::vector<float> output(kOther + 6 + 1, -1.0F);
    unpack_output(narrower, 3, output.data());
    EXPECT_EQ(output.back(), -1.0F);
  }
}

}  // namespace
}  // namespace accord::kernels
