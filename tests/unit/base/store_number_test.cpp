// Numbers stored as floats of few bits, compared with a reference that searches for the nearest.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "base/element.hpp"
#include "unit/kernels/half_reference.hpp"

namespace accord {
namespace {

std::uint64_t stored(double number, DType dtype) {
  std::uint64_t bits = 0;
  store_number(number, dtype, &bits);
  return bits;
}

TEST(StoreNumber, small_floats_are_the_nearest_ones) {
  const std::pair<DType, const kernels::HalfReference&> formats[] = {
      {DType::kFloat16, kernels::HalfReference::float16()},
      {DType::kBFloat16, kernels::HalfReference::bfloat16()},
      {DType::kFloat8E4M3FN, kernels::HalfReference::float8_e4m3fn()},
      {DType::kFloat8E5M2, kernels::HalfReference::float8_e5m2()}};
  for (const auto& [dtype, reference] : formats)
    for (double magnitude = 1e-9; magnitude < 1e6; magnitude *= 1.037)
      for (const double number : {magnitude, -magnitude, std::nextafter(magnitude, 0.0)}) {
        const auto narrow = static_cast<float>(number);  // both conversions round the same number
        ASSERT_EQ(stored(narrow, dtype), static_cast<std::uint64_t>(reference.encode(narrow)))
            << narrow << " as " << to_string(dtype);
      }
}

TEST(StoreNumber, zeros_infinities_and_ties_are_stored_correctly) {
  EXPECT_EQ(stored(0.0, DType::kFloat16), 0x0000U);
  EXPECT_EQ(stored(-0.0, DType::kFloat16), 0x8000U);
  EXPECT_EQ(stored(INFINITY, DType::kBFloat16), 0x7F80U);
  EXPECT_EQ(stored(1e30, DType::kFloat16), 0x7C00U);
  EXPECT_EQ(stored(1e30, DType::kFloat8E5M2), 0x7CU);
  EXPECT_EQ(stored(2049.0, DType::kFloat16), 0x6800U);  // between 2048 and 2050: rounds to the even one
  EXPECT_EQ(stored(1.5, DType::kFloat32), 0x3FC00000U);
  EXPECT_EQ(stored(1.5, DType::kFloat64), 0x3FF8000000000000U);
}

}  // namespace
}  // namespace accord
