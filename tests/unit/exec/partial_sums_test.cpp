// Sums of 16-bit floats that are continued, compared with the definition: widened exactly, added in fp32, rounded
// once.
#include "exec/partial_sums.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "conformance/comm/reference.hpp"

namespace accord::exec {
namespace {

using testing::from_bfloat16;
using testing::sample;
using testing::to_bfloat16;

template <typename T>
PartialOperand operand(std::vector<T>& values, bool is_partial) {
  return {reinterpret_cast<std::byte*>(values.data()), is_partial};
}

std::vector<std::uint16_t> halves(int rank, std::size_t count) {
  std::vector<std::uint16_t> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = to_bfloat16(sample(rank, i));
  return values;
}

void reduce(std::vector<PartialOperand> sources, std::vector<PartialOperand> destinations, std::size_t count) {
  PartialSums sums;
  sums.reserve(static_cast<int>(sources.size()));
  sums.reduce(partial_kernels(DType::kBFloat16, ReduceOp::kSum), sources, destinations, count);
}

TEST(PartialSums, elements_become_a_sum_that_is_not_rounded) {
  for (const std::size_t count : {0, 1, 7, 1023, 1024, 1025, 5000}) {
    std::vector<std::uint16_t> a = halves(0, count), b = halves(1, count);
    std::vector<float> sum(count);
    reduce({operand(a, false), operand(b, false)}, {operand(sum, true)}, count);
    for (std::size_t i = 0; i < count; ++i) ASSERT_EQ(sum[i], from_bfloat16(a[i]) + from_bfloat16(b[i])) << i;
  }
}

TEST(PartialSums, sums_and_elements_become_a_sum_that_is_rounded_once) {
  constexpr std::size_t kCount = 3000;
  std::vector<float> ab(kCount), whole(kCount, -1);
  std::vector<std::uint16_t> c = halves(2, kCount), rounded(kCount);
  for (std::size_t i = 0; i < kCount; ++i) ab[i] = sample(0, i) / 3;  // more bits than a bfloat16 has
  reduce({operand(ab, true), operand(c, false)}, {operand(rounded, false), operand(whole, true)}, kCount);
  for (std::size_t i = 0; i < kCount; ++i) {
    ASSERT_EQ(whole[i], ab[i] + from_bfloat16(c[i])) << i;
    ASSERT_EQ(rounded[i], to_bfloat16(ab[i] + from_bfloat16(c[i]))) << i;
  }
}

TEST(PartialSums, a_sum_may_be_added_to_in_place) {
  constexpr std::size_t kCount = 2500;
  std::vector<float> sum(kCount), other(kCount);
  for (std::size_t i = 0; i < kCount; ++i) sum[i] = sample(0, i), other[i] = sample(1, i) / 7;
  const std::vector<float> before = sum;
  reduce({operand(other, true), operand(sum, true)}, {operand(sum, true)}, kCount);
  for (std::size_t i = 0; i < kCount; ++i) ASSERT_EQ(sum[i], other[i] + before[i]) << i;
}

TEST(PartialSums, nan_and_infinity_propagate) {
  std::vector<float> sum = {std::numeric_limits<float>::infinity(), 1};
  std::vector<std::uint16_t> halfs = {to_bfloat16(2), 0xffc1};  // a NaN with a sign and a payload
  std::vector<std::uint16_t> out(2);
  reduce({operand(sum, true), operand(halfs, false)}, {operand(out, false)}, 2);
  EXPECT_EQ(out[0], 0x7f80);
  EXPECT_EQ(out[1], 0x7fc0);
}

TEST(PartialSums, only_16_bit_floats_need_them) {
  EXPECT_EQ(accumulator_of(DType::kFloat16), DType::kFloat32);
  EXPECT_NE(partial_kernels(DType::kFloat16, ReduceOp::kMin).reduce, nullptr);
  for (const DType dtype : {DType::kFloat32, DType::kInt32, DType::kInt64}) {
    EXPECT_EQ(accumulator_of(dtype), dtype);
    EXPECT_EQ(partial_kernels(dtype, ReduceOp::kSum).reduce, nullptr);
  }
}

}  // namespace
}  // namespace accord::exec
