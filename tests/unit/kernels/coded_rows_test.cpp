// 8-bit codes compared with the format's definition: each error is at most half a scale, and each scale is a 127th of
// the largest magnitude.
#include "kernels/coded_rows.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "every_instruction_set.hpp"
#include "half_reference.hpp"
#include "random_floats.hpp"

namespace accord::kernels {
namespace {

constexpr std::int64_t kLengths[] = {1, 63, 64, 65, 1000};
constexpr std::byte kUntouched{0xA5};

std::vector<std::byte> bytes_for(std::int64_t count) {
  return std::vector<std::byte>(static_cast<std::size_t>((count + kCodeGroup - 1) / kCodeGroup * kCodeGroupBytes + 1),
                                kUntouched);
}

float largest_of_group(const std::vector<float>& x, std::int64_t at) {
  const auto first = x.begin() + at / kCodeGroup * kCodeGroup;
  const auto last = std::min(first + kCodeGroup, x.end());
  float largest = 0.0F;
  for (auto value = first; value != last; ++value) largest = std::max(largest, std::fabs(*value));
  return largest;
}

class CodedRows : public EveryInstructionSet {};

TEST_P(CodedRows, an_element_is_decoded_within_half_a_scale) {
  for (const std::int64_t count : kLengths) {
    std::vector<float> x = random_floats(static_cast<std::size_t>(count), 3, -5.0F, 2.0F);
    std::fill(x.begin(), x.begin() + std::min<std::int64_t>(count / 100 * 64, 64), 0.0F);
    std::vector<std::byte> codes = bytes_for(count);
    encode_groups(x.data(), DType::kFloat32, count, codes.data());
    EXPECT_EQ(codes.back(), kUntouched);
    std::vector<float> y(x.size() + 1, 77.0F);
    decode_groups(codes.data(), count, y.data(), DType::kFloat32);
    EXPECT_EQ(y.back(), 77.0F);
    for (std::int64_t i = 0; i < count; ++i) {
      const auto at = static_cast<std::size_t>(i);
      const float scale = largest_of_group(x, i) / 127.0F;
      ASSERT_NEAR(y[at], x[at], 0.50001F * scale) << i << " of " << count;
      float stored = 0.0F;
      std::memcpy(&stored, codes.data() + i / kCodeGroup * kCodeGroupBytes, sizeof(stored));
      ASSERT_EQ(stored, scale);
    }
  }
}

TEST_P(CodedRows, sixteen_bit_floats_are_coded_as_their_values) {
  const std::int64_t count = 100;
  const std::vector<float> x = random_floats(static_cast<std::size_t>(count), 4, -3.0F, 3.0F);
  for (const auto& [dtype, format] :
       {std::pair{DType::kBFloat16, HalfReference::bfloat16()}, {DType::kFloat16, HalfReference::float16()}}) {
    std::vector<std::uint16_t> bits, back(x.size());
    std::vector<float> values;
    for (const float value : x) {
      bits.push_back(static_cast<std::uint16_t>(format.encode(static_cast<double>(value))));
      values.push_back(static_cast<float>(format.decode(bits.back())));
    }
    std::vector<std::byte> codes = bytes_for(count), expected = bytes_for(count);
    encode_groups(bits.data(), dtype, count, codes.data());
    encode_groups(values.data(), DType::kFloat32, count, expected.data());
    EXPECT_EQ(codes, expected);
    std::vector<float> wide(x.size());
    decode_groups(codes.data(), count, wide.data(), DType::kFloat32);
    decode_groups(codes.data(), count, back.data(), dtype);
    for (std::size_t i = 0; i < x.size(); ++i) {
      ASSERT_EQ(back[i], static_cast<std::uint16_t>(format.encode(static_cast<double>(wide[i]))));
    }
  }
}

TEST_P(CodedRows, the_error_of_a_sum_is_within_the_rounding_of_its_parts_and_itself) {
  constexpr std::int64_t kParts = 3;
  const std::int64_t count = 4 * kCodeGroup;
  std::vector<std::byte> parts, sum = bytes_for(count);
  std::vector<double> exact(static_cast<std::size_t>(count)), bound(exact.size());
  for (std::int64_t part = 0; part < kParts; ++part) {
    const std::vector<float> x = random_floats(exact.size(), static_cast<unsigned>(20 + part), -1.0F, 4.0F);
    std::vector<std::byte> codes = bytes_for(count);
    encode_groups(x.data(), DType::kFloat32, count, codes.data());
    parts.insert(parts.end(), codes.begin(), codes.end() - 1);
    for (std::size_t i = 0; i < exact.size(); ++i) {
      exact[i] += static_cast<double>(x[i]);
      bound[i] += static_cast<double>(largest_of_group(x, static_cast<std::int64_t>(i))) / 127.0;
    }
  }
  add_groups(parts.data(), kParts, 4 * kCodeGroupBytes, 4, sum.data());
  EXPECT_EQ(sum.back(), kUntouched);
  std::vector<float> y(exact.size());
  decode_groups(sum.data(), count, y.data(), DType::kFloat32);
  for (std::size_t i = 0; i < exact.size(); ++i) ASSERT_NEAR(static_cast<double>(y[i]), exact[i], 1.0001 * bound[i]);
}

TEST_P(CodedRows, a_value_that_is_not_finite_makes_only_its_group_nan) {
  for (const float bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    std::vector<float> x(2 * kCodeGroup, 1.0F);
    x[5] = bad;
    std::vector<std::byte> codes = bytes_for(2 * kCodeGroup), sums = bytes_for(2 * kCodeGroup);
    encode_groups(x.data(), DType::kFloat32, 2 * kCodeGroup, codes.data());
    add_groups(codes.data(), 1, 0, 2, sums.data());
    std::vector<float> y(x.size());
    decode_groups(sums.data(), 2 * kCodeGroup, y.data(), DType::kFloat32);
    for (std::size_t i = 0; i < y.size(); ++i) ASSERT_EQ(std::isnan(y[i]), i < kCodeGroup) << i;
    ASSERT_NEAR(y.back(), 1.0F, 1e-6F);
  }
}

ACCORD_ON_EVERY_INSTRUCTION_SET(CodedRows);

}  // namespace
}  // namespace accord::kernels
