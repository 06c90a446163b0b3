// Float8 weights: how they are stored, how they are rounded, and rejected values. HalfReference decodes the numbers
// by definition.

#include "kernels/linear/float8.hpp"

#include <gtest/gtest.h>

#include "linear_case.hpp"

namespace accord::kernels {
namespace {

constexpr PackedFormat kFloat8{
    .type = WeightType::kFloat8, .group = 0, .minimum = Minimum::kNone, .scale_type = DType::kFloat32};

struct Weight {
  std::int64_t out, in;
  std::vector<float> values, scales;

  Weight(std::int64_t o, std::int64_t i, unsigned seed)
      : out(o), in(i), values(random_floats(static_cast<std::size_t>(o * i), seed)) {
    for (std::int64_t output = 0; output < out; ++output) {
      float largest = 0.0F;
      for (std::int64_t k = 0; k < in; ++k) largest = std::max(largest, std::fabs(at(output, k)));
      scales.push_back(largest / 448.0F);
    }
  }
  float& at(std::int64_t output, std::int64_t input) { return values[static_cast<std::size_t>(output * in + input)]; }
  WeightSource source() const {
    return {.data = values.data(),
            .dtype = DType::kFloat32,
            .out = out,
            .in = in,
            .out_stride = in,
            .in_stride = 1,
            .scales = scales.data()};
  }
};

std::uint8_t code_of(float value, float scale) {
  return static_cast<std::uint8_t>(HalfReference::float8_e4m3fn().encode(static_cast<double>(value / scale)));
}
float value_of(std::uint8_t code, float scale) {
  return scale * static_cast<float>(HalfReference::float8_e4m3fn().decode(code));
}

TEST(Float8, scales_precede_rows_of_the_nearest_elements) {
  Weight weight(70, 33, 1);
  AlignedVector packed(packed_bytes(kFloat8, 70, 33));
  ASSERT_EQ(packed.span().size(), std::size_t{70 * 4 + 70 * 33});
  const Result<PackError> error = pack(weight.source(), kFloat8, packed.span());
  ASSERT_TRUE(error.ok()) << error.status().to_string();
  double squares = 0.0, of_all = 0.0;
  for (std::int64_t output = 0; output < 70; ++output) {
    float scale;
    std::memcpy(&scale, packed.data() + output * 4, 4);
    ASSERT_EQ(scale, weight.scales[static_cast<std::size_t>(output)]);
    for (std::int64_t input = 0; input < 33; ++input) {
      const auto code = static_cast<std::uint8_t>(packed.data()[70 * 4 + output * 33 + input]);
      ASSERT_EQ(code, code_of(weight.at(output, input), scale));
      const auto off = static_cast<double>(value_of(code, scale) - weight.at(output, input));
      squares += off * off;
      of_all += static_cast<double>(weight.at(output, input)) * static_cast<double>(weight.at(output, input));
    }
  }
  EXPECT_NEAR(error->relative, std::sqrt(squares / of_all), 1e-6);
  EXPECT_GT(error->relative, 0.005);
  EXPECT_LT(error->relative, 0.04);  // at most 1/16 of an element

  std::vector<float> all(70 * 33);
  unpack(packed_matrix(kFloat8, 70, 33, packed.data()), all.data());
  for (std::int64_t i = 0; i < 70 * 33; ++i) {
    const float scale = weight.scales[static_cast<std::size_t>(i / 33)];
    ASSERT_EQ(all[static_cast<std::size_t>(i)], value_of(code_of(weight.at(0, i), scale), scale));
  }
}

TEST(Float8, blocks_of_a_sharded_weight_are_joined) {
  constexpr std::int64_t kOut = 24, kIn = 20;
  Weight weight(kOut, kIn, 2);
  AlignedVector one(packed_bytes(kFloat8, kOut, kIn));
  ASSERT_TRUE(pack(weight.source(), kFloat8, one.span()).ok());
  std::vector<float> whole(kOut * kIn);
  unpack(packed_matrix(kFloat8, kOut, kIn, one.data()), whole.data());
  for (const bool by_outputs : {true, false}) {  // in units of 16 or 8; the last one is not full
    const std::int64_t unit = by_outputs ? 16 : 8, units = by_outputs ? 2 : 3;
    const std::int64_t out = by_outputs ? unit : kOut, in = by_outputs ? kIn : unit;
    const std::size_t bytes = packed_bytes(kFloat8, out, in);
    AlignedVector blocks(bytes * static_cast<std::size_t>(units));
    for (std::int64_t block = 0; block < units; ++block) {
      std::vector<float> part(static_cast<std::size_t>(out * in)), scales(static_cast<std::size_t>(out));
      for (std::int64_t o = 0; o < out; ++o) {
        for (std::int64_t i = 0; i < in; ++i) {
          const std::int64_t output = o + (by_outputs ? block * unit : 0), input = i + (by_outputs ? 0 : block * unit);
          if (output >= kOut || input >= kIn) continue;
          part[static_cast<std::size_t>(o * in + i)] = weight.at(output, input);
          scales[static_cast<std::size_t>(o)] = weight.scales[static_cast<std::size_t>(output)];
        }
      }
      const WeightSource source{part.data(), DType::kFloat32, out, in, in, 1, scales.data()};
      ASSERT_TRUE(pack(source, kFloat8, blocks.span().subspan(static_cast<std::size_t>(block) * bytes, bytes)).ok());
    }
    PackedMatrix matrix = packed_matrix(kFloat8, out, in, blocks.data());
    (by_outputs ? matrix.out_units : matrix.in_units) = units;
    (by_outputs ? matrix.out_unit_stride : matrix.in_unit_stride) = static_cast<std::int64_t>(bytes);
    (by_outputs ? matrix.out_padding : matrix.in_padding) = by_outputs ? 8 : 4;
    std::vector<float> found(whole.size());
    unpack(matrix, found.data());
    EXPECT_EQ(found, whole);
    std::vector<std::byte> narrow(whole.size() * 2);
    unpack(matrix, 0, 3, DType::kBFloat16, narrow);
    unpack(matrix, 3, kOut, DType::kBFloat16, narrow);
    EXPECT_EQ(narrow, stored(whole, DType::kBFloat16));

    std::vector<std::uint8_t> elements(whole.size());
    std::vector<float> scales(kOut);
    ASSERT_TRUE(copy_float8(matrix, elements.data(), scales.data()));
    EXPECT_EQ(scales, weight.scales);
    for (std::size_t i = 0; i < elements.size(); ++i) ASSERT_EQ(value_of(elements[i], scales[i / kIn]), whole[i]);
    std::memset(blocks.data() + bytes, 0, 4);  // the second block's first scale
    EXPECT_EQ(copy_float8(matrix, elements.data(), scales.data()), by_outputs);
  }
}

TEST(Float8, groups_of_inputs_have_their_own_scales) {
  constexpr std::int64_t kOut = 5, kIn = 88, kUnit = 32;  // 32, 32 and 24 inputs, in groups of 16
  PackedFormat format = kFloat8;
  format.group = 16;
  constexpr std::int64_t kGroups = 6;
  std::vector<std::uint8_t> codes(kOut * kIn);
  for (std::size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<std::uint8_t>(i * 37 % 0x7F + i % 2 * 0x80);
  std::vector<float> scales = random_floats(kOut * kGroups, 4), expected(codes.size());
  for (float& scale : scales) scale = std::fabs(scale) + 0.125F;
  for (std::int64_t i = 0; i < kOut * kIn; ++i) {
    const float scale = scales[static_cast<std::size_t>(i / kIn * kGroups + i % kIn / 16)];
    expected[static_cast<std::size_t>(i)] = value_of(codes[static_cast<std::size_t>(i)], scale);
  }
  AlignedVector one(packed_bytes(format, kOut, kIn));
  ASSERT_EQ(one.span().size(), std::size_t{kOut * (kGroups * 4 + kIn)});
  ASSERT_TRUE(pack({kOut, kIn, codes.data(), scales.data(), nullptr}, format, one.span()).ok());
  std::vector<float> found(codes.size());
  unpack(packed_matrix(format, kOut, kIn, one.data()), found.data());
  EXPECT_EQ(found, expected);

  // In units of two groups. The last one has 24 inputs, followed by zeros.
  const std::size_t bytes = packed_bytes(format, kOut, kUnit);
  AlignedVector units(3 * bytes);
  for (std::int64_t unit = 0; unit < 3; ++unit) {
    std::vector<std::uint8_t> its(kOut * kUnit);
    std::vector<float> of_unit(kOut * 2);
    for (std::int64_t output = 0; output < kOut; ++output) {
      for (std::int64_t i = 0; i < std::min(kUnit, kIn - unit * kUnit); ++i)
        its[static_cast<std::size_t>(output * kUnit + i)] =
            codes[static_cast<std::size_t>(output * kIn + unit * kUnit + i)];
      for (std::int64_t g = 0; g < 2; ++g)
        of_unit[static_cast<std::size_t>(output * 2 + g)] =
            scales[static_cast<std::size_t>(output * kGroups + unit * 2 + g)];
    }
    const auto to = units.span().subspan(static_cast<std::size_t>(unit) * bytes, bytes);
    ASSERT_TRUE(pack({kOut, kUnit, its.data(), of_unit.data(), nullptr}, format, to).ok());
  }
  PackedMatrix matrix = packed_matrix(format, kOut, kUnit, units.data());
  matrix.in_units = 3;
  matrix.in_unit_stride = static_cast<std::int64_t>(bytes);
  matrix.in_padding = 8;
  unpack(matrix, found.data());
  EXPECT_EQ(found, expected);
  std::vector<std::uint8_t> elements(codes.size());
  std::vector<float> of_groups(scales.size());
  ASSERT_TRUE(copy_float8(matrix, elements.data(), of_groups.data()));
  EXPECT_EQ(elements, codes);
  EXPECT_EQ(of_groups, scales);

  WeightSource source{expected.data(), DType::kFloat32, kOut, kIn, kIn, 1, scales.data()};
  const Result<PackError> error = pack(source, format, one.span());
  ASSERT_TRUE(error.ok()) << error.status().to_string();
  EXPECT_LT(error->relative, 1e-6);  // the numbers are codes already
  scales[7] = NAN;
  EXPECT_EQ(pack(source, format, one.span()).status().code(), StatusCode::kInvalidArgument);
}

TEST(Float8, existing_elements_are_unchanged) {
  const std::vector<std::uint8_t> codes = {0x01, 0x7E, 0xFE, 0x80, 0x38, 0x00};
  const std::vector<float> scales = {0.3F, 2.0F};
  AlignedVector packed(packed_bytes(kFloat8, 2, 3));
  ASSERT_TRUE(pack({2, 3, codes.data(), scales.data(), nullptr}, kFloat8, packed.span()).ok());
  std::vector<float> values(6);
  unpack(packed_matrix(kFloat8, 2, 3, packed.data()), values.data());
  EXPECT_EQ(values, (std::vector<float>{0.3F * 0x1p-9F, 0.3F * 448.0F, 0.3F * -448.0F, -0.0F, 2.0F, 0.0F}));
}

TEST(Float8, values_that_cannot_be_packed_are_rejected) {
  AlignedVector packed(packed_bytes(kFloat8, 4, 8));
  const auto refusal = [&](Weight weight) { return pack(weight.source(), kFloat8, packed.span()).status(); };
  Weight weight(4, 8, 3);
  ASSERT_TRUE(refusal(weight).ok());
  for (const float bad : {NAN, HUGE_VALF}) {
    Weight changed = weight;
    changed.at(2, 5) = bad;
    EXPECT_EQ(refusal(changed).code(), StatusCode::kInvalidArgument);
    EXPECT_NE(refusal(changed).message().find("output 2"), std::string::npos);
    changed = weight;
    changed.scales[1] = bad;
    EXPECT_EQ(refusal(changed).code(), StatusCode::kInvalidArgument);
  }
  weight.scales[3] = 0.0F;  // as for zeros
  EXPECT_TRUE(refusal(weight).ok());
  WeightSource without = weight.source();
  without.scales = nullptr;
  EXPECT_EQ(pack(without, kFloat8, packed.span()).status().code(), StatusCode::kInvalidArgument);
  std::vector<std::uint8_t> codes(32, 0xFF);
  EXPECT_NE(pack({4, 8, codes.data(), weight.scales.data(), nullptr}, kFloat8, packed.span()).message().find("NaN"),
            std::string::npos);
  EXPECT_FALSE(pack(weight.source(), kFloat8, packed.span().first(20)).ok());

  EXPECT_TRUE(check(kFloat8).ok());
  for (const PackedFormat& none : {PackedFormat{WeightType::kFloat8, 48, Minimum::kNone, DType::kFloat32},
                                   PackedFormat{WeightType::kFloat8, 0, Minimum::kPerGroup, DType::kFloat32},
                                   PackedFormat{WeightType::kFloat8, 0, Minimum::kNone, DType::kFloat16}}) {
    EXPECT_EQ(check(none).code(), StatusCode::kInvalidArgument);
  }
  const PackedMatrix matrix = packed_matrix(kFloat8, 4, 8, packed.data());
  EXPECT_EQ(rows_layout(matrix, Arithmetic::kFloat32, 1).status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace accord::kernels
