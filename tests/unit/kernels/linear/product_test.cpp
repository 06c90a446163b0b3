// Products with packed weights compared with double-precision loops, in every format and on every instruction set.

#include "kernels/linear/product.hpp"

#include <limits>

#include "linear_case.hpp"
#include "unit/kernels/activation_reference.hpp"

namespace accord::kernels {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

const PackedFormat kFloatFormats[] = {{WeightType::kFloat32}, {WeightType::kBFloat16}, {WeightType::kFloat16}};
const PackedFormat kQuantizedFormats[] = {
    {WeightType::kInt8, 32},
    {WeightType::kInt8, 128, Minimum::kNone, DType::kFloat32},
    {WeightType::kInt8, 64, Minimum::kPerGroup, DType::kFloat32},
    {WeightType::kInt4, 32},
    {WeightType::kInt4, 32, Minimum::kPerGroup},
    {WeightType::kInt4, 64, Minimum::kPerGroup, DType::kFloat32},
    {WeightType::kInt4, 128},
    kInt5,
    {WeightType::kInt5, 64, Minimum::kPerGroup},
    {WeightType::kInt6, 16, Minimum::kNone, DType::kFloat32},
    {WeightType::kInt6, 128},
    {WeightType::kInt8, 64, Minimum::kNone, DType::kInt8},
    {WeightType::kInt4, 16, Minimum::kPerGroup, DType::kInt8},
    kSuperInt4,
    kSuperInt5,
    kSuperInt6,
    kTableOfQuantiles,
    kTableOfSteps,
    {WeightType::kTable4, 16, Minimum::kNone, DType::kInt8, kSteps},
};

std::vector<PackedFormat> all_formats() {
  std::vector<PackedFormat> formats(std::begin(kFloatFormats), std::end(kFloatFormats));
  formats.insert(formats.end(), std::begin(kQuantizedFormats), std::end(kQuantizedFormats));
  return formats;
}

std::vector<Arithmetic> arithmetics_of(const PackedFormat& format) {
  if (!format.quantized()) return {Arithmetic::kFloat32, Arithmetic::kBFloat16};
  if (!format.has_integers()) return {Arithmetic::kFloat32, Arithmetic::kBFloat16};
  return {Arithmetic::kFloat32, Arithmetic::kBFloat16, Arithmetic::kInt8};
}

std::string name_of(const PackedFormat& format, Arithmetic arithmetic) {
  return "type " + std::to_string(static_cast<int>(format.type)) + " group " + std::to_string(format.group) +
         " scales " + std::string(to_string(format.scale_type)) + " arithmetic " +
         std::to_string(static_cast<int>(arithmetic));
}

// Takes x [rows, in] with gaps between rows, float32 and no epilogue, and checks every output.
void check_product(const TestWeight& weight, Arithmetic arithmetic, std::int64_t rows, DType x_type = DType::kFloat32) {
  const std::int64_t x_stride = weight.in + 3, y_stride = weight.out + 5;
  const std::vector<std::byte> x = stored(random_floats(static_cast<std::size_t>(rows * x_stride), 7), x_type);
  std::vector<float> y(static_cast<std::size_t>(rows * y_stride), -77.0F);
  ProductCall call;
  call.weights = &weight.matrix;
  call.y = {y.data(), DType::kFloat32, y_stride};
  const Status status = run(call, {x.data(), x_type, x_stride}, arithmetic, rows);
  ASSERT_TRUE(status.ok()) << status.to_string();
  for (std::int64_t row = 0; row < rows; ++row) {
    std::vector<double> inputs;
    for (std::int64_t i = 0; i < weight.in; ++i) {
      inputs.push_back(element(x.data(), static_cast<std::size_t>(row * x_stride + i), x_type));
    }
    inputs = seen_inputs(inputs, arithmetic, weight.format);
    for (std::int64_t output = 0; output < y_stride; ++output) {
      const double got = static_cast<double>(y[static_cast<std::size_t>(row * y_stride + output)]);
      if (output >= weight.out) {
        ASSERT_EQ(got, -77.0) << "wrote between the rows";
        continue;
      }
      double sum = 0.0, size = 0.0;
      for (std::int64_t i = 0; i < weight.in; ++i) {
        const std::size_t at = static_cast<std::size_t>(output * weight.in + i);
        sum += inputs[static_cast<std::size_t>(i)] * (weight.seen(arithmetic)[at] + weight.minima[at]);
        size += std::fabs(inputs[static_cast<std::size_t>(i)]) *
                (std::fabs(weight.scaled[at]) + std::fabs(weight.minima[at]));
      }
      ASSERT_NEAR(got, sum, 2e-6 * size + 1e-30)
          << name_of(weight.format, arithmetic) << ", row " << row << " of " << rows << ", output " << output << " of "
          << weight.out << ", inputs " << weight.in;
    }
  }
}

class Product : public EveryPanelKernel {};
ACCORD_WITH_EVERY_PANEL_KERNEL(Product);

TEST_P(Product, agrees_with_a_double_loop_in_every_format) {
  for (const PackedFormat& format : all_formats()) {
    const TestWeight weight(format, 150, 300, 2);  // neither whole panels nor whole groups; two chunks
    for (const Arithmetic arithmetic : arithmetics_of(format)) {
      for (const std::int64_t rows : {0, 1, 3, 17}) check_product(weight, arithmetic, rows);
    }
  }
}

TEST_P(Product, accepts_any_size) {
  for (const PackedFormat& format : all_formats()) {
    for (const auto& [out, in] :
         {std::pair<std::int64_t, std::int64_t>{1, 1}, {16, 31}, {48, 33}, {65, 129}, {64, 640}}) {
      const TestWeight weight(format, out, in, 3);
      for (const Arithmetic arithmetic : arithmetics_of(format)) check_product(weight, arithmetic, 5);
    }
  }
}

TEST_P(Product, accepts_rows_of_16_bits) {
  for (const PackedFormat& format : {kFloatFormats[1], kFloatFormats[2], kQuantizedFormats[0], kQuantizedFormats[3]}) {
    const TestWeight weight(format, 40, 96, 4);
    for (const DType x_type : {DType::kBFloat16, DType::kFloat16}) {
      for (const Arithmetic arithmetic : arithmetics_of(format)) check_product(weight, arithmetic, 2, x_type);
    }
  }
}

TEST_P(Product, gives_a_row_the_same_bits_in_any_batch_and_partition) {
  constexpr std::int64_t kRows = 251, kOut = 208, kIn = 288;
  const std::vector<float> x = random_floats(kRows * kIn, 5);
  for (const PackedFormat& format : all_formats()) {
    const TestWeight weight(format, kOut, kIn, 6);
    for (const Arithmetic arithmetic : arithmetics_of(format)) {
      const auto multiply = [&](std::int64_t first, std::int64_t rows, const std::vector<std::int64_t>& cuts) {
        std::vector<float> y(static_cast<std::size_t>(rows * kOut));
        ProductCall call;
        call.weights = &weight.matrix;
        call.y = {y.data(), DType::kFloat32, kOut};
        EXPECT_TRUE(run(call, {x.data() + first * kIn, DType::kFloat32, kIn}, arithmetic, rows, cuts).ok());
        return y;
      };
      const std::vector<float> all = multiply(0, kRows, {});
      for (const auto& [first, rows] :
           {std::pair<std::int64_t, std::int64_t>{0, 1}, {7, 2}, {30, 7}, {100, 4}, {160, 20}, {240, 11}, {245, 6}}) {
        const std::vector<float> some = multiply(first, rows, {1, 3});
        ASSERT_EQ(std::memcmp(some.data(), all.data() + first * kOut, some.size() * sizeof(float)), 0)
            << name_of(format, arithmetic) << ", rows " << first << " to " << first + rows;
      }
    }
  }
}

TEST_P(Product, of_a_shard_of_outputs_is_bit_identical_to_the_whole) {
  constexpr std::int64_t kOut = 192, kIn = 160;
  const std::vector<float> values = random_floats(kOut * kIn, 8), x = random_floats(kIn, 9);
  for (const PackedFormat& format : all_formats()) {
    const auto multiply = [&](std::int64_t first, std::int64_t count) {
      WeightSource source;
      source.data = values.data() + first * kIn;
      source.out = count;
      source.in = source.out_stride = kIn;
      AlignedVector packed(packed_bytes(format, count, kIn));
      EXPECT_TRUE(pack(source, format, packed.span()).ok());
      const PackedMatrix matrix = packed_matrix(format, count, kIn, packed.data());
      std::vector<float> y(static_cast<std::size_t>(count));
      ProductCall call;
      call.weights = &matrix;
      call.y = {y.data(), DType::kFloat32, count};
      EXPECT_TRUE(run(call, {x.data(), DType::kFloat32, kIn}, Arithmetic::kFloat32, 1).ok());
      return y;
    };
    const std::vector<float> all = multiply(0, kOut), shard = multiply(40, 72);  // its panels begin elsewhere
    ASSERT_EQ(std::memcmp(shard.data(), all.data() + 40, shard.size() * sizeof(float)), 0)
        << name_of(format, Arithmetic::kFloat32);
  }
}

TEST_P(Product, accepts_weights_at_any_address) {
  constexpr std::int64_t kOut = 70, kIn = 100;
  const std::vector<float> x = random_floats(9 * kIn, 10);
  for (const PackedFormat& format : all_formats()) {
    TestWeight weight(format, kOut, kIn, 11);
    const std::size_t bytes = packed_bytes(format, kOut, kIn);
    AlignedVector odd(bytes + 1);
    std::memcpy(odd.data() + 1, weight.packed.data(), bytes);
    const PackedMatrix elsewhere = packed_matrix(format, kOut, kIn, odd.data() + 1);
    for (const Arithmetic arithmetic : arithmetics_of(format)) {
      const auto multiply = [&](const PackedMatrix& matrix) {
        std::vector<float> y(9 * kOut);
        ProductCall call;
        call.weights = &matrix;
        call.y = {y.data(), DType::kFloat32, kOut};
        EXPECT_TRUE(run(call, {x.data(), DType::kFloat32, kIn}, arithmetic, 9).ok());
        return y;
      };
      const std::vector<float> here = multiply(weight.matrix), there = multiply(elsewhere);
      ASSERT_EQ(std::memcmp(here.data(), there.data(), here.size() * sizeof(float)), 0) << name_of(format, arithmetic);
    }
  }
}

TEST_P(Product, applies_bias_activation_gate_and_residual) {
  constexpr std::int64_t kRows = 3, kOut = 75, kIn = 20;
  const TestWeight up({WeightType::kFloat32}, kOut, kIn, 30), gate({WeightType::kFloat32}, kOut, kIn, 31);
  const std::vector<float> x = random_floats(kRows * kIn, 32), bias = random_floats(kOut, 33),
                           gate_bias = random_floats(kOut, 34);
  const auto sum_of = [&](const TestWeight& weight, std::int64_t row, std::int64_t output) {
    double sum = 0.0;
    for (std::int64_t i = 0; i < kIn; ++i) {
      sum += static_cast<double>(x[static_cast<std::size_t>(row * kIn + i)]) *
             weight.scaled[static_cast<std::size_t>(output * kIn + i)];
    }
    return sum;
  };
  for (const DType type : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    const std::vector<std::byte> residual = stored(random_floats(kRows * kOut, 35), type);
    for (const bool gated : {false, true}) {
      for (int kind = 0; kind <= static_cast<int>(Activation::kTanh); ++kind) {
        const Activation activation = static_cast<Activation>(kind);
        std::vector<std::byte> y = residual;  // in place
        ProductCall call;
        call.weights = &up.matrix;
        call.gate = gated ? &gate.matrix : nullptr;
        call.bias = bias.data();
        call.gate_bias = gated ? gate_bias.data() : nullptr;
        call.activation = activation;
        call.residual = {y.data(), type, kOut};
        call.y = {y.data(), type, kOut};
        ASSERT_TRUE(run(call, {x.data(), DType::kFloat32, kIn}, Arithmetic::kFloat32, kRows).ok());
        for (std::int64_t row = 0; row < kRows; ++row) {
          for (std::int64_t output = 0; output < kOut; ++output) {
            const std::size_t at = static_cast<std::size_t>(row * kOut + output),
                              column = static_cast<std::size_t>(output);
            double want = sum_of(up, row, output) + static_cast<double>(bias[column]);
            if (gated) {
              want *= activate(activation, sum_of(gate, row, output) + static_cast<double>(gate_bias[column]));
            } else {
              want = activate(activation, want);
            }
            want += element(residual.data(), at, type);
            const double step = type == DType::kFloat32 ? 0x1p-20 : type == DType::kFloat16 ? 0x1p-10 : 0x1p-7;
            ASSERT_NEAR(element(y.data(), at, type), want, step * (1.0 + std::fabs(want)))
                << "activation " << kind << (gated ? ", gated" : "");
          }
        }
      }
    }
  }
}

TEST_P(Product, confines_nan_and_infinity_to_its_row) {
  constexpr std::int64_t kOut = 70, kIn = 100;
  for (const PackedFormat& format : all_formats()) {
    const TestWeight weight(format, kOut, kIn, 40);
    for (const Arithmetic arithmetic : arithmetics_of(format)) {
      std::vector<float> x = random_floats(3 * kIn, 41), y(3 * kOut);
      x[17] = NAN;
      x[kIn + 90] = kInfinity;
      ProductCall call;
      call.weights = &weight.matrix;
      call.y = {y.data(), DType::kFloat32, kOut};
      ASSERT_TRUE(run(call, {x.data(), DType::kFloat32, kIn}, arithmetic, 3).ok());
      for (std::int64_t output = 0; output < kOut; ++output) {
        const std::size_t at = static_cast<std::size_t>(output);
        const double w = weight.scaled[at * kIn + 90] + weight.minima[at * kIn + 90];
        ASSERT_TRUE(std::isnan(y[at])) << name_of(format, arithmetic);
        ASSERT_FALSE(std::isfinite(y[kOut + at])) << name_of(format, arithmetic);
        if (!format.quantized() && w != 0.0) {
          ASSERT_EQ(static_cast<double>(y[kOut + at]), w * HUGE_VAL);
        }
        ASSERT_TRUE(std::isfinite(y[2 * kOut + at])) << name_of(format, arithmetic);
      }
    }
  }
}

TEST_P(Product, propagates_nan_and_infinity_of_weights) {
  constexpr std::int64_t kOut = 20, kIn = 9;
  for (const PackedFormat& format : kFloatFormats) {
    std::vector<float> values = random_floats(kOut * kIn, 50), x(kIn, 1.0F), y(kOut);
    values[2 * kIn + 3] = NAN;
    values[5 * kIn + 8] = -kInfinity;
    TestWeight weight(format, kOut, kIn, 51);
    weight.fill_floats(values);
    for (const Arithmetic arithmetic : arithmetics_of(format)) {
      ProductCall call;
      call.weights = &weight.matrix;
      call.y = {y.data(), DType::kFloat32, kOut};
      ASSERT_TRUE(run(call, {x.data(), DType::kFloat32, kIn}, arithmetic, 1).ok());
      for (std::size_t output = 0; output < kOut; ++output) {
        ASSERT_EQ(std::isnan(y[output]), output == 2) << name_of(format, arithmetic);
        ASSERT_EQ(y[output] == -kInfinity, output == 5) << name_of(format, arithmetic);
      }
    }
  }
}

TEST_P(Product, adds_denormals_or_flushes_them_to_zero) {
  constexpr std::int64_t kOut = 16, kIn = 64;
  const float denormal = 0x1p-130F;
  for (const PackedFormat& format : all_formats()) {
    TestWeight weight(format, kOut, kIn, 60);
    for (const Arithmetic arithmetic : arithmetics_of(format)) {
      const std::vector<float> x(kIn, denormal);
      std::vector<float> y(kOut);
      ProductCall call;
      call.weights = &weight.matrix;
      call.y = {y.data(), DType::kFloat32, kOut};
      ASSERT_TRUE(run(call, {x.data(), DType::kFloat32, kIn}, arithmetic, 1).ok());
      for (std::int64_t output = 0; output < kOut; ++output) {
        double sum = 0.0;
        for (std::int64_t i = 0; i < kIn; ++i) {
          const std::size_t at = static_cast<std::size_t>(output * kIn + i);
          sum += static_cast<double>(denormal) * (weight.scaled[at] + weight.minima[at]);
        }
        ASSERT_NEAR(static_cast<double>(y[static_cast<std::size_t>(output)]), sum,
                    arithmetic == Arithmetic::kFloat32 ? 1e-42 : 1e-35)
            << name_of(format, arithmetic);
      }
    }
  }
}

TEST(ProductCall, that_does_not_fit_is_rejected) {
  const TestWeight weight({WeightType::kInt4, 32}, 64, 64, 70), other({WeightType::kInt4, 64}, 64, 64, 71);
  EXPECT_FALSE(rows_layout(weight.matrix, Arithmetic::kBFloat16, -1).ok());
  EXPECT_FALSE(rows_layout(TestWeight({WeightType::kFloat32}, 64, 64, 72).matrix, Arithmetic::kInt8, 1).ok());
  EXPECT_FALSE(rows_layout(TestWeight(kTableOfQuantiles, 64, 64, 73).matrix, Arithmetic::kInt8, 1).ok());
  const RowsLayout layout = *rows_layout(weight.matrix, Arithmetic::kFloat32, 2);
  AlignedVector prepared(layout.bytes()), scratch(kProductScratch);
  std::vector<float> y(128);
  ProductCall call;
  call.weights = &weight.matrix;
  call.layout = &layout;
  call.x = prepared.data();
  call.y = {y.data(), DType::kFloat32, 64};
  EXPECT_TRUE(product(call, full_share(call), scratch.span()).ok());
  EXPECT_EQ(product(call, {0, 2, 0, 2}, scratch.span()).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(product(call, {0, 1, 0, 3}, scratch.span()).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(product(call, full_share(call), scratch.span().first(64)).code(), StatusCode::kInvalidArgument);
  ProductCall wrong = call;
  wrong.y.stride = 63;
  EXPECT_EQ(product(wrong, full_share(call), scratch.span()).code(), StatusCode::kInvalidArgument);
  wrong = call;
  wrong.y.dtype = DType::kInt32;
  EXPECT_EQ(product(wrong, full_share(call), scratch.span()).code(), StatusCode::kInvalidArgument);
  wrong = call;
  wrong.gate = &other.matrix;
  EXPECT_EQ(product(wrong, full_share(call), scratch.span()).code(), StatusCode::kInvalidArgument);
  wrong.weights = &other.matrix;
  EXPECT_EQ(product(wrong, full_share(call), scratch.span()).code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace accord::kernels
