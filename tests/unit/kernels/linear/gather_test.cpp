// Rows of a packed table, compared with the values that were packed.

#include "kernels/linear/gather.hpp"

#include <gtest/gtest.h>

#include "linear_case.hpp"

namespace accord::kernels {
namespace {

constexpr std::int64_t kTableRows = 70, kWidth = 50;

class GatherOutputs : public testing::Test {
 protected:
  void SetUp() override {
    WeightSource source{values_.data(), DType::kFloat32, kTableRows, kWidth, kWidth, 1};
    ASSERT_TRUE(pack(source, {}, packed_.span()).ok());
  }
  std::vector<float> values_ = random_floats(kTableRows * kWidth, 1);
  AlignedVector packed_{packed_bytes({}, kTableRows, kWidth)};
  PackedMatrix table_ = packed_matrix({}, kTableRows, kWidth, packed_.data());
  std::vector<float> row_ = std::vector<float>(kWidth);
  std::vector<float> output_ = std::vector<float>(3 * kWidth, -1.0F);
  // The rows from number 10 on, of a table of 90.
  GatherOutputsCall call_{
      .count = 3, .table = &table_, .first_row = 10, .total_rows = 90, .output = output_.data(), .row = row_.data()};
};

TEST_F(GatherOutputs, selects_rows_and_gives_zeros_for_rows_of_other_ranks) {
  const std::vector<std::int64_t> wide = {79, 80, 10};
  const std::vector<std::int32_t> narrow(wide.begin(), wide.end());
  for (const DType dtype : {DType::kInt64, DType::kInt32}) {
    call_.ids = dtype == DType::kInt64 ? static_cast<const void*>(wide.data()) : narrow.data();
    call_.id_dtype = dtype;
    ASSERT_FALSE(gather_outputs(call_).has_value());
    for (std::size_t i = 0; i < kWidth; ++i) {
      EXPECT_EQ(output_[i], values_[69 * kWidth + i]);
      EXPECT_EQ(output_[kWidth + i], 0.0F);
      EXPECT_EQ(output_[2 * kWidth + i], values_[i]);
    }
  }
}

TEST_F(GatherOutputs, rounds_to_the_dtype_of_the_output) {
  const std::int32_t id = 12;
  std::vector<std::uint16_t> halves(kWidth);
  call_.ids = &id;
  call_.id_dtype = DType::kInt32;
  call_.count = 1;
  call_.output = halves.data();
  call_.output_dtype = DType::kBFloat16;
  ASSERT_FALSE(gather_outputs(call_).has_value());
  const HalfReference& reference = HalfReference::bfloat16();
  for (std::size_t i = 0; i < kWidth; ++i) {
    EXPECT_EQ(halves[i], reference.encode(static_cast<double>(values_[2 * kWidth + i])));
  }
}

TEST_F(GatherOutputs, names_the_first_bad_id_and_writes_nothing) {
  for (const std::int64_t bad : {std::int64_t{-1}, std::int64_t{90}}) {
    const std::vector<std::int64_t> ids = {15, bad, -9};
    call_.ids = ids.data();
    const auto found = gather_outputs(call_);
    ASSERT_TRUE(found.has_value());
    EXPECT_EQ(found->position, 1);
    EXPECT_EQ(found->id, bad);
    EXPECT_EQ(output_, std::vector<float>(3 * kWidth, -1.0F));
  }
}

}  // namespace
}  // namespace accord::kernels
