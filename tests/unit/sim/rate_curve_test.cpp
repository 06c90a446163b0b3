#include "sim/rate_curve.hpp"

#include <gtest/gtest.h>

namespace accord::sim {
namespace {

TEST(RateCurves, change_with_the_logarithm_of_the_size) {
  const RateCurve curve({{100, 1e9}, {10000, 1e9 / 3}});
  EXPECT_DOUBLE_EQ(curve.seconds_per_byte(1), 1e-9);
  EXPECT_DOUBLE_EQ(curve.seconds_per_byte(100), 1e-9);
  EXPECT_DOUBLE_EQ(curve.seconds_per_byte(1000), 2e-9);
  EXPECT_DOUBLE_EQ(curve.seconds_per_byte(10000), 3e-9);
  EXPECT_DOUBLE_EQ(curve.seconds_per_byte(1e9), 3e-9);
  EXPECT_DOUBLE_EQ(RateCurve(2e9).seconds_per_byte(7), 5e-10);
  EXPECT_DOUBLE_EQ(RateCurve().seconds_per_byte(7), 0);
}

TEST(RateCurves, let_the_smallest_steps_take_as_long_as_the_first_size) {
  const RateCurve curve({{64, 1e9}, {6400, 4e9}});
  EXPECT_DOUBLE_EQ(8 * curve.seconds_per_byte_of_step(8), 64e-9);
  EXPECT_DOUBLE_EQ(64 * curve.seconds_per_byte_of_step(64), 64e-9);
  EXPECT_DOUBLE_EQ(curve.seconds_per_byte_of_step(6400), 0.25e-9);
  EXPECT_DOUBLE_EQ(curve.seconds_per_byte_of_step(0), 1e-9);
  EXPECT_DOUBLE_EQ(RateCurve(1e9).seconds_per_byte_of_step(8), 1e-9);
}

}  // namespace
}  // namespace accord::sim
