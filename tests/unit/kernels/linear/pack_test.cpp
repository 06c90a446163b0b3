// Packing: the values of packed weights, the reported errors, and rejected values.

#include "kernels/linear/pack.hpp"

#include <gtest/gtest.h>

#include <limits>

#include "linear_case.hpp"

namespace accord::kernels {
namespace {

const PackedFormat kInt4{WeightType::kInt4, 32};

WeightSource source_of(const std::vector<float>& values, std::int64_t out, std::int64_t in) {
  WeightSource source;
  source.data = values.data();
  source.out = out;
  source.in = in;
  source.out_stride = in;
  return source;
}

std::vector<float> unpacked(const PackedMatrix& matrix) {
  std::vector<float> values(static_cast<std::size_t>(matrix.out() * matrix.in()));
  unpack(matrix, values.data());
  return values;
}

TEST(Pack, lays_panels_out_in_the_documented_format) {
  constexpr std::int64_t kOut = 80, kIn = 64;
  std::vector<float> values(kOut * kIn);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 251);
  AlignedVector packed(packed_bytes({WeightType::kBFloat16}, kOut, kIn));
  ASSERT_EQ(packed.span().size(), std::size_t{kOut * kIn * 2});
  ASSERT_TRUE(pack(source_of(values, kOut, kIn), {WeightType::kBFloat16}, packed.span()).ok());
  const std::uint16_t* const halves = reinterpret_cast<const std::uint16_t*>(packed.data());
  for (std::int64_t output = 0; output < kOut; ++output) {
    for (std::int64_t input = 0; input < kIn; ++input) {
      const std::int64_t panel = output / 64, width = panel == 0 ? 64 : 16;
      const std::int64_t at = panel * 64 * kIn + ((input / 2) * width + output % 64) * 2 + input % 2;
      ASSERT_EQ(HalfReference::bfloat16().decode(halves[at]),
                static_cast<double>(values[static_cast<std::size_t>(output * kIn + input)]));
    }
  }
}

TEST(Pack, keeps_quantized_weights_exactly) {
  const PackedFormat int8_with_minima{WeightType::kInt8, 64, Minimum::kPerGroup, DType::kFloat32};
  for (const PackedFormat& format : {kInt8, int8_with_minima, kInt4, kInt4WithMinima, kInt5, kSuperInt4, kSuperInt5,
                                     kSuperInt6, kTableOfSteps, kTableOfQuantiles}) {
    const TestWeight weight(format, 75, 350, 1);  // two super-groups
    const std::vector<float> values = unpacked(weight.matrix);
    for (std::size_t i = 0; i < values.size(); ++i) {
      ASSERT_EQ(values[i], static_cast<float>(weight.scaled[i] + weight.minima[i]));
    }
  }
}

TEST(Pack, returns_one_output_of_a_sharded_weight) {
  constexpr std::int64_t kUnit = 80, kIn = 50;
  for (const PackedFormat& format :
       {kInt8, kInt4WithMinima, kSuperInt5, kSuperInt6, PackedFormat{WeightType::kBFloat16}}) {
    const TestWeight weight(format, kUnit, kIn, 5);
    const std::size_t bytes = packed_bytes(format, kUnit, kIn);
    AlignedVector twice(2 * bytes);  // the same block, as consecutive outputs or inputs
    std::memcpy(twice.data(), weight.matrix.data, bytes);
    std::memcpy(twice.data() + bytes, weight.matrix.data, bytes);
    PackedMatrix matrix = packed_matrix(format, kUnit, kIn, twice.data());
    matrix.out_units = matrix.in_units = 2;
    matrix.in_unit_stride = static_cast<std::int64_t>(bytes);
    std::vector<float> row(2 * kIn);
    unpack_output(matrix, kUnit + 70, row.data());
    for (std::size_t i = 0; i < row.size(); ++i) {
      const std::size_t at = 70 * kIn + i % kIn;
      ASSERT_EQ(row[i], static_cast<float>(weight.scaled[at] + weight.minima[at]));
    }
  }
}

TEST(Pack, rounds_to_the_nearest_code_and_reports_the_error) {
  constexpr std::int64_t kOut = 70, kIn = 96;
  for (const PackedFormat& format : {kInt8, kSuperInt6, kSuperInt5, kInt4, kInt4WithMinima, kSuperInt4, kTableOfSteps,
                                     kTableOfQuantiles, PackedFormat{WeightType::kBFloat16}}) {
    const std::vector<float> values = random_floats(kOut * kIn, 2);
    AlignedVector packed(packed_bytes(format, kOut, kIn));
    const Result<PackError> error = pack(source_of(values, kOut, kIn), format, packed.span());
    ASSERT_TRUE(error.ok());
    const std::vector<float> back = unpacked(packed_matrix(format, kOut, kIn, packed.data()));
    double largest = 0.0, squares = 0.0, of_all = 0.0;
    for (std::size_t i = 0; i < back.size(); ++i) {
      const double off = static_cast<double>(back[i]) - static_cast<double>(values[i]);
      largest = std::max(largest, std::fabs(off));
      squares += off * off;
      of_all += static_cast<double>(values[i]) * static_cast<double>(values[i]);
    }
    EXPECT_DOUBLE_EQ(error->largest, largest);
    EXPECT_NEAR(error->relative, std::sqrt(squares / of_all), 1e-12);
    // Half a step. The range of a group is 1 to each side; a float16 scale adds a little, and scales of scales half a
    // step of those.
    const bool has_minima = format.minimum == Minimum::kPerGroup;
    const double step = format == kInt8               ? 1.0 / 127
                        : format == kTableOfSteps     ? (12.0 - 8.0) / 12.0  // the longest one
                        : format == kTableOfQuantiles ? 1.0 - 0.6961928
                        : !format.quantized()         ? 1.0 / 128
                                                      : 2.0 / (format.codes() - (has_minima ? 1 : 0));
    const bool whole_step = format == kInt4 || format == kSuperInt6;  // the largest on the other side has no code
    EXPECT_LE(largest, (whole_step ? step : 0.51 * step) + (format.has_super_groups() ? 0.02 : 0.001));
    EXPECT_GT(largest, 0.2 * step);
  }
}

TEST(Pack, accepts_any_strides_types_and_parts) {
  constexpr std::int64_t kOut = 130, kIn = 33;
  const std::vector<float> values = random_floats(kOut * kIn, 3);
  std::vector<float> turned(values.size());
  for (std::int64_t o = 0; o < kOut; ++o) {
    for (std::int64_t i = 0; i < kIn; ++i) {
      turned[static_cast<std::size_t>(i * kOut + o)] = values[static_cast<std::size_t>(o * kIn + i)];
    }
  }
  for (const PackedFormat& format : {PackedFormat{WeightType::kFloat16}, kInt4}) {
    const std::size_t bytes = packed_bytes(format, kOut, kIn);
    AlignedVector straight(bytes), transposed(bytes), parts(bytes), halves(bytes);
    ASSERT_TRUE(pack(source_of(values, kOut, kIn), format, straight.span()).ok());
    WeightSource source = source_of(turned, kOut, kIn);
    source.out_stride = 1;
    source.in_stride = kOut;
    ASSERT_TRUE(pack(source, format, transposed.span()).ok());
    source = source_of(values, kOut, kIn);
    ASSERT_TRUE(pack(source, format, 64, kOut, parts.span()).ok());
    ASSERT_TRUE(pack(source, format, 0, 64, parts.span()).ok());
    EXPECT_EQ(std::memcmp(straight.data(), transposed.data(), bytes), 0);
    EXPECT_EQ(std::memcmp(straight.data(), parts.data(), bytes), 0);
    const std::vector<std::byte> narrow = stored(values, DType::kFloat16);
    source.data = narrow.data();
    source.dtype = DType::kFloat16;
    ASSERT_TRUE(pack(source, format, halves.span()).ok());
    if (format.type == WeightType::kFloat16) {
      EXPECT_EQ(std::memcmp(straight.data(), halves.data(), bytes), 0);
    }
  }
}

TEST(Pack, accepts_scales_over_the_whole_range_of_their_type) {
  for (const float magnitude : {1e-30F, 1e-6F, 1e4F, 1e30F}) {
    for (PackedFormat format : {kInt8, kInt4, kInt4WithMinima}) {
      std::vector<float> values = random_floats(64 * 32, 4);
      for (float& value : values) value *= magnitude;
      AlignedVector packed(packed_bytes(format, 64, 32));
      format.scale_type = DType::kFloat16;
      const Result<PackError> narrow = pack(source_of(values, 64, 32), format, packed.span());
      EXPECT_EQ(narrow.ok(), magnitude < 1e30F);
      if (magnitude == 1e-30F) {
        EXPECT_DOUBLE_EQ(narrow->relative, 1.0) << "rounded to zero without a report";
      }
      format.scale_type = DType::kFloat32;
      AlignedVector wide(packed_bytes(format, 64, 32));
      const Result<PackError> error = pack(source_of(values, 64, 32), format, wide.span());
      ASSERT_TRUE(error.ok());
      EXPECT_LT(error->relative, 0.1);
    }
  }
}

TEST(Pack, values_without_a_code_and_wrong_sizes_are_rejected) {
  std::vector<float> values(64 * 32, 1.0F);
  AlignedVector packed(packed_bytes(kInt8, 64, 32));
  for (const float bad : {NAN, HUGE_VALF, -HUGE_VALF}) {
    values[100] = bad;
    const Result<PackError> error = pack(source_of(values, 64, 32), kInt8, packed.span());
    ASSERT_EQ(error.status().code(), StatusCode::kInvalidArgument);
    EXPECT_NE(error.status().to_string().find("output 3"), std::string::npos);
  }
  values[100] = 1.0F;
  EXPECT_FALSE(pack(source_of(values, 64, 32), kInt8, packed.span().first(100)).ok());
  EXPECT_FALSE(pack(source_of(values, 64, 32), kInt8, 16, 64, packed.span()).ok());
  EXPECT_FALSE(pack(source_of(values, 0, 32), kInt8, packed.span()).ok());
  for (const PackedFormat& none :
       {PackedFormat{WeightType::kInt8, 48}, PackedFormat{WeightType::kInt8}, PackedFormat{WeightType::kFloat16, 32},
        PackedFormat{WeightType::kInt6, 32, Minimum::kPerGroup},
        PackedFormat{WeightType::kTable4, 32, Minimum::kPerGroup, DType::kFloat16, kSteps},
        PackedFormat{WeightType::kTable4, 32, Minimum::kNone, DType::kFloat16, {HUGE_VALF}},
        PackedFormat{WeightType::kInt4, 32, Minimum::kNone, DType::kBFloat16}}) {
    EXPECT_EQ(check(none).code(), StatusCode::kInvalidArgument);
  }
  std::vector<std::uint8_t> codes(64 * 32, 16);
  std::vector<float> scales(64, 1.0F);
  EXPECT_FALSE(pack({64, 32, codes.data(), scales.data(), nullptr}, kInt4, packed.span()).ok()) << "a code of 16";
  std::fill(codes.begin(), codes.end(), std::uint8_t{15});
  EXPECT_TRUE(pack({64, 32, codes.data(), scales.data(), nullptr}, kInt4, packed.span()).ok());
  scales[5] = 1.0F + 0x1p-20F;
  EXPECT_FALSE(pack({64, 32, codes.data(), scales.data(), nullptr}, kInt4, packed.span()).ok()) << "no float16";
}

}  // namespace
}  // namespace accord::kernels
