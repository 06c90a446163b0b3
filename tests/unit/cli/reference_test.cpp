// The data with which benchmarks are checked: decoded by base/element and added up here, one element at a time.
#include "cli/bench/reference.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "base/element.hpp"

namespace accord::cli {
namespace {

constexpr std::size_t kCount = 1000;

std::vector<std::byte> filled(const Reference& reference, Rank rank, std::size_t count) {
  std::vector<std::byte> bytes(count * size_of(reference.call().dtype));
  reference.fill(rank, {bytes.data(), count, reference.call().dtype});
  return bytes;
}

class Floats : public testing::TestWithParam<DType> {};

TEST_P(Floats, every_sum_of_the_inputs_is_the_expected_output) {
  const DType dtype = GetParam();
  const std::size_t element = size_of(dtype);
  for (const int size : {1, 2, 5}) {
    const Reference reference({.collective = Collective::kAllReduce, .dtype = dtype, .size = size, .count = kCount});
    std::vector<std::vector<std::byte>> inputs;
    for (Rank rank = 0; rank < size; ++rank) inputs.push_back(filled(reference, rank, kCount));
    // An element is correct exactly where input 0 equals the sum of all inputs: the other inputs are zero there.
    std::size_t equal = 0;
    for (std::size_t i = 0; i < kCount; ++i) {
      std::complex<double> sum = 0;
      for (const auto& input : inputs) sum += number_at(&input[i * element], dtype);
      if (sum == number_at(&inputs[0][i * element], dtype)) ++equal;
    }
    const WrongElements wrong = reference.check(0, ConstBuffer(inputs[0].data(), kCount, dtype));
    EXPECT_EQ(wrong.count, kCount - equal) << size << " ranks";
  }
}

INSTANTIATE_TEST_SUITE_P(, Floats,
                         testing::Values(DType::kFloat8E5M2, DType::kFloat8E4M3FN, DType::kFloat16, DType::kBFloat16,
                                         DType::kFloat32, DType::kFloat64, DType::kComplex64, DType::kComplex128),
                         [](const auto& tested) { return std::string(to_string(tested.param)); });

TEST(Reference, all_to_all_expects_part_r_of_each_rank_and_detects_a_single_wrong_bit) {
  constexpr int kRanks = 3;
  const Reference reference(
      {.collective = Collective::kAllToAll, .dtype = DType::kUInt8, .size = kRanks, .count = kCount});
  std::vector<std::byte> output;
  for (Rank rank = 0; rank < kRanks; ++rank) {
    const std::vector<std::byte> input = filled(reference, rank, kRanks * kCount);
    output.insert(output.end(), input.begin() + kCount, input.begin() + 2 * kCount);
  }
  const ConstBuffer whole(output.data(), output.size(), DType::kUInt8);
  EXPECT_EQ(reference.check(1, whole).count, 0U);
  EXPECT_NE(reference.check(0, whole).count, 0U) << "another rank's output";
  output[2345] ^= std::byte{1};
  EXPECT_EQ(reference.check(1, whole).count, 1U);
  EXPECT_EQ(reference.check(1, whole).first, 2345U);
}

TEST(Reference, inputs_differ_between_ranks_and_positions) {
  const Reference reference({.collective = Collective::kAllGather, .dtype = DType::kInt32, .size = 4, .count = kCount});
  const std::vector<std::byte> mine = filled(reference, 0, kCount), other = filled(reference, 1, kCount);
  EXPECT_NE(mine, other);
  for (std::size_t shift = 4; shift < 61 * 4; shift += 4)
    EXPECT_NE(std::memcmp(mine.data(), mine.data() + shift, 61 * 4), 0) << shift << " bytes further";
}

}  // namespace
}  // namespace accord::cli
