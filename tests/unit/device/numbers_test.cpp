// Every value of the small formats, and rounding to them, compared with their definition.
#include "device/numbers.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "unit/kernels/half_reference.hpp"

namespace accord::device {
namespace {

using kernels::HalfReference;

/// Compares bits; for NaN, any NaN will do.
void expect_same(float found, double expected, unsigned bits) {
  if (std::isnan(expected)) {
    EXPECT_TRUE(std::isnan(found)) << bits;
    return;
  }
  EXPECT_EQ(std::bit_cast<std::uint32_t>(found), std::bit_cast<std::uint32_t>(static_cast<float>(expected))) << bits;
}

TEST(Numbers, every_value_of_8_and_16_bits_is_widened) {
  for (unsigned bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    expect_same(from_float16(half), HalfReference::float16().decode(half), bits);
    expect_same(from_bfloat16(half), HalfReference::bfloat16().decode(half), bits);
    if (bits >= 0x100) continue;
    expect_same(from_minifloat<E4M3FN>(bits), HalfReference::float8_e4m3fn().decode(half), bits);
    expect_same(from_minifloat<E5M2>(bits), HalfReference::float8_e5m2().decode(half), bits);
  }
}

void expect_rounded(float x) {
  EXPECT_EQ(to_float16(x), HalfReference::float16().encode(x)) << x;
  EXPECT_EQ(to_bfloat16(x), HalfReference::bfloat16().encode(x)) << x;
  EXPECT_EQ(to_minifloat<E4M3FN>(x), HalfReference::float8_e4m3fn().encode(x)) << x;
  EXPECT_EQ(to_minifloat<E5M2>(x), HalfReference::float8_e5m2().encode(x)) << x;
}

TEST(Numbers, floats_are_rounded_to_the_nearest_with_ties_to_even) {
  for (const float x : {0.0F, -0.0F, INFINITY, -INFINITY, NAN, -NAN, 65504.0F, 65519.0F, 65520.0F, -65536.0F, 1e30F,
                        3.4e38F, 5.9604645e-8F, 2.9802322e-8F, 2.9802326e-8F, 6.1035156e-5F, 6.1e-5F, 1e-40F, 1e-45F})
    expect_rounded(x);
  for (unsigned bits = 0; bits < 0x7C00; ++bits) {  // at every half, and around the middle between two
    const auto at = static_cast<float>(HalfReference::float16().decode(static_cast<std::uint16_t>(bits)));
    const auto next = static_cast<float>(HalfReference::float16().decode(static_cast<std::uint16_t>(bits + 1)));
    if (std::isinf(next)) continue;
    const float middle = (at + next) / 2;
    for (const float x : {at, middle, std::nextafter(middle, next), std::nextafter(middle, at)}) expect_rounded(-x);
  }
  std::mt19937 random(3);
  for (int i = 0; i < 20000; ++i) expect_rounded(std::bit_cast<float>(static_cast<std::uint32_t>(random())));
}

}  // namespace
}  // namespace accord::device
