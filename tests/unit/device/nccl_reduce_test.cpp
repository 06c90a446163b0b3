// The arithmetic of the NCCL over host memory, by dtype.
#include "device/nccl_reduce.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>

#include "base/element.hpp"

namespace accord::testing::nccl {
namespace {

/// Reduces one element of three ranks.
template <typename T>
T reduced(ncclDataType_t dtype, ncclRedOp_t op, T a, T b, T c, const std::vector<Scalar>& factors = {}) {
  T result;
  const void* const sources[] = {&a, &b, &c};
  reduce(&result, sources, 1, dtype, op, factors);
  return result;
}

TEST(NcclReduce, integers_wrap_and_their_averages_round_toward_zero) {
  EXPECT_EQ(reduced<std::int8_t>(ncclInt8, ncclSum, 100, 100, 1), -55);
  EXPECT_EQ(reduced<std::uint8_t>(ncclUint8, ncclProd, 20, 20, 1), 144);
  EXPECT_EQ(reduced<std::int32_t>(ncclInt32, ncclAvg, -5, -2, -1), -2);
  EXPECT_EQ(reduced<std::uint32_t>(ncclUint32, ncclMax, 1, 4000000000U, 2), 4000000000U);
  EXPECT_EQ(reduced<std::int64_t>(ncclInt64, ncclMin, 1, -7, 2), -7);
  EXPECT_EQ(reduced<std::uint64_t>(ncclUint64, ncclSum, ~std::uint64_t{0}, 2, 3), 4U);
  EXPECT_EQ(reduced<std::int32_t>(ncclInt32, ncclNumOps, 1, 2, 3, {{std::byte{1}}, {std::byte{2}}, {std::byte{3}}}),
            14);
}

TEST(NcclReduce, floats_are_added_in_the_order_of_ranks) {
  EXPECT_EQ(reduced<float>(ncclFloat32, ncclSum, 1e8F, 1, -1e8F), 0);
  EXPECT_EQ(reduced<float>(ncclFloat32, ncclSum, 1e8F, -1e8F, 1), 1);
  EXPECT_EQ(reduced<double>(ncclFloat64, ncclSum, 1e8, 1, -1e8), 1);
  EXPECT_EQ(reduced<double>(ncclFloat64, ncclAvg, 1, 2, 6), 3);
  EXPECT_EQ(reduced<float>(ncclFloat32, ncclProd, 2, 3, 4), 24);
  EXPECT_EQ(reduced<float>(ncclFloat32, ncclMin, 2, -3, 4), -3);
}

TEST(NcclReduce, small_floats_are_rounded_once) {
  // 1 + 2^-11 + 2^-11 = 1 + 2^-10: rounded after each step, float16 would give 1. 0x3C00 is 1, 0x1000 is 2^-11.
  EXPECT_EQ(reduced<std::uint16_t>(ncclFloat16, ncclSum, 0x3C00, 0x1000, 0x1000), 0x3C01);
  EXPECT_EQ(reduced<std::uint16_t>(ncclFloat16, ncclSum, 0x3C00, 0x1000, 0), 0x3C00);        // a tie, to even
  EXPECT_EQ(reduced<std::uint16_t>(ncclFloat16, ncclSum, 0x3C01, 0x1000, 0), 0x3C02);        // a tie, to even
  EXPECT_EQ(reduced<std::uint16_t>(ncclFloat16, ncclSum, 0x7BFF, 0x7BFF, 0), 0x7C00);        // infinity
  EXPECT_EQ(reduced<std::uint16_t>(ncclBfloat16, ncclSum, 0x3F80, 0x3B80, 0x3B80), 0x3F81);  // 1 + 2^-8 + 2^-8
  EXPECT_EQ(reduced<std::uint8_t>(ncclFloat8e4m3, ncclSum, 0x7E, 0x7E, 0), 0x7E);            // 448 is the largest
  EXPECT_EQ(reduced<std::uint8_t>(ncclFloat8e4m3, ncclSum, 0x38, 0x38, 0x38), 0x44);         // 1 + 1 + 1 = 3
  EXPECT_EQ(reduced<std::uint8_t>(ncclFloat8e5m2, ncclSum, 0x7B, 0x7B, 0), 0x7C);            // infinity
  EXPECT_EQ(reduced<std::uint16_t>(ncclFloat16, ncclAvg, 0x3C00, 0x4000, 0x4200), 0x4000);   // (1 + 2 + 3) / 3
}

/// Every value except NaN is unchanged.
template <typename Bits>
void check_all(ncclDataType_t dtype, DType same) {
  for (int code = 0; code <= std::numeric_limits<Bits>::max(); ++code) {
    const auto bits = static_cast<Bits>(code);
    if (std::isnan(number_at(&bits, same).real())) continue;
    ASSERT_EQ(reduced<Bits>(dtype, ncclMax, bits, bits, bits), bits) << name_of(dtype);
  }
}

TEST(NcclReduce, every_small_float_is_read_and_written_unchanged) {
  check_all<std::uint16_t>(ncclFloat16, DType::kFloat16);
  check_all<std::uint16_t>(ncclBfloat16, DType::kBFloat16);
  check_all<std::uint8_t>(ncclFloat8e4m3, DType::kFloat8E4M3FN);
  check_all<std::uint8_t>(ncclFloat8e5m2, DType::kFloat8E5M2);
}

}  // namespace
}  // namespace accord::testing::nccl
