// Numbers of 8 and 16 bits against plain arithmetic: each of their values, and the rounding of what lies between two of them.
#include "device/numbers.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace accord::device {
namespace {

/// A format of floats by its definition: (-1)^sign 2^(exponent - bias) 1.fraction, below the smallest exponent 0.fraction.
struct Format {
  int width, mantissa, bias;
  bool finite;  ///< no infinity, and one NaN of each sign
  float (*from)(std::uint32_t bits);
  std::uint32_t (*to)(float x);

  double value(std::uint32_t bits) const {
    const std::uint32_t rest = bits & ((1U << (width - 1)) - 1);
    const int exponent = static_cast<int>(rest >> mantissa);
    const double fraction = static_cast<double>(rest & ((1U << mantissa) - 1)) / (1 << mantissa);
    const double size = exponent == 0 ? std::ldexp(fraction, 1 - bias) : std::ldexp(1 + fraction, exponent - bias);
    return bits >> (width - 1) == 0 ? size : -size;
  }
  std::uint32_t nan() const { return finite ? (1U << (width - 1)) - 1 : infinity() + 1; }
  std::uint32_t infinity() const { return ((1U << (width - 1)) - 1) >> mantissa << mantissa; }
  std::uint32_t largest() const { return finite ? nan() - 1 : infinity() - 1; }
};

const std::vector<Format> kFormats = {
    {16, 10, 15, false, [](std::uint32_t bits) { return from_float16(static_cast<std::uint16_t>(bits)); },
     [](float x) { return std::uint32_t{to_float16(x)}; }},
    {16, 7, 127, false, [](std::uint32_t bits) { return from_bfloat16(static_cast<std::uint16_t>(bits)); },
     [](float x) { return std::uint32_t{to_bfloat16(x)}; }},
    {8, 3, 7, true, [](std::uint32_t bits) { return from_float8_e4m3fn(static_cast<std::uint8_t>(bits)); },
     [](float x) { return std::uint32_t{to_float8_e4m3fn(x)}; }},
    {8, 2, 15, false, [](std::uint32_t bits) { return from_float8_e5m2(static_cast<std::uint8_t>(bits)); },
     [](float x) { return std::uint32_t{to_float8_e5m2(x)}; }},
};

TEST(Numbers, of_every_value_become_floats_and_back) {
  for (const Format& format : kFormats) {
    SCOPED_TRACE(testing::Message() << format.width << " bits, " << format.mantissa << " of mantissa");
    for (std::uint32_t bits = 0; bits <= format.largest(); ++bits) {
      for (const std::uint32_t sign : {0U, 1U << (format.width - 1)}) {
        ASSERT_EQ(format.from(bits | sign), static_cast<float>(format.value(bits | sign))) << bits;
        ASSERT_EQ(format.to(format.from(bits | sign)), bits | sign);
      }
    }
  }
}

TEST(Numbers, between_two_values_are_rounded_to_nearest_even) {
  for (const Format& format : kFormats) {
    SCOPED_TRACE(testing::Message() << format.width << " bits, " << format.mantissa << " of mantissa");
    for (std::uint32_t bits = 0; bits < format.largest(); ++bits) {
      const auto middle = static_cast<float>((format.value(bits) + format.value(bits + 1)) / 2);
      const std::uint32_t even = bits % 2 == 0 ? bits : bits + 1;
      ASSERT_EQ(format.to(middle), even) << bits;
      ASSERT_EQ(format.to(std::nextafter(middle, 0.0F)), bits);
      ASSERT_EQ(format.to(std::nextafter(middle, INFINITY)), bits + 1);
    }
  }
}

TEST(Numbers, too_large_or_none_become_infinity_or_nan) {
  for (const Format& format : kFormats) {
    SCOPED_TRACE(testing::Message() << format.width << " bits, " << format.mantissa << " of mantissa");
    EXPECT_TRUE(std::isnan(format.from(format.to(NAN))));
    EXPECT_TRUE(std::isnan(format.from(format.nan())));
    const float beyond = format.from(format.to(std::numeric_limits<float>::infinity()));
    EXPECT_TRUE(format.finite ? std::isnan(beyond) : std::isinf(beyond));
    if (format.bias < 127) {
      const auto larger = static_cast<float>(format.value(format.largest()) * 1.5);
      EXPECT_EQ(format.to(larger), format.finite ? format.nan() : format.infinity());
      EXPECT_EQ(format.to(-1e30F), (format.finite ? format.nan() : format.infinity()) | 1U << (format.width - 1));
    }
  }
}

}  // namespace
}  // namespace accord::device
