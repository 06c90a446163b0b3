// Sums over a tree are bit-identical to the same additions done one by one, in every dtype and on every instruction
// set.
#include "kernels/row_tree.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <random>
#include <vector>

#include "base/element.hpp"
#include "unit/kernels/every_instruction_set.hpp"
#include "unit/kernels/half_reference.hpp"

namespace accord::kernels {
namespace {

class RowTrees : public EveryInstructionSet {};
ACCORD_ON_EVERY_INSTRUCTION_SET(RowTrees);

using RowBytes = std::vector<std::byte>;

/// Returns `width` random elements.
RowBytes random_row(std::mt19937& random, DType dtype, std::size_t width) {
  RowBytes row(width * size_of(dtype));
  std::normal_distribution<double> values;
  for (std::size_t i = 0; i < width; ++i) {
    const double value = values(random);
    const auto store = [&](auto element) { std::memcpy(&row[i * sizeof element], &element, sizeof element); };
    if (dtype == DType::kFloat64) store(value);
    if (dtype == DType::kFloat32) store(static_cast<float>(value));
    if (dtype == DType::kFloat16) store(HalfReference::float16().encode(value));
    if (dtype == DType::kBFloat16) store(HalfReference::bfloat16().encode(value));
    if (dtype == DType::kFloat8E4M3FN) store(static_cast<std::uint8_t>(HalfReference::float8_e4m3fn().encode(value)));
    if (dtype == DType::kFloat8E5M2) store(static_cast<std::uint8_t>(HalfReference::float8_e5m2().encode(value)));
  }
  return row;
}

double element(const RowBytes& row, DType dtype, std::size_t i) {
  return number_at(row.data() + i * size_of(dtype), dtype).real();
}

/// Rounds the result of one addition or product as the accumulator does.
double rounded(double value, DType accumulator) {
  return accumulator == DType::kFloat64 ? value : static_cast<double>(static_cast<float>(value));
}

struct Case {
  DType dtype;
  DType y_dtype;
  bool weighted = false;
  bool scaled = false;
};
const Case kCases[] = {{DType::kFloat64, DType::kFloat64},       {DType::kFloat64, DType::kFloat64, true},
                       {DType::kFloat32, DType::kFloat32},       {DType::kFloat32, DType::kBFloat16, true},
                       {DType::kBFloat16, DType::kBFloat16},     {DType::kBFloat16, DType::kFloat32, true},
                       {DType::kFloat16, DType::kFloat16, true}, {DType::kFloat8E4M3FN, DType::kBFloat16, false, true},
                       {DType::kFloat8E4M3FN, DType::kFloat32},  {DType::kFloat8E5M2, DType::kFloat32, true, true}};

/// Returns one element of the sum, computed with a stack of numbers.
double expected(const TreeSum& sum, const std::vector<RowBytes>& rows, std::size_t i) {
  const DType accumulator = tree_accumulator(sum.dtype);
  std::vector<double> waiting;
  for (std::size_t r = 0; r < rows.size(); ++r) {
    const TreeRow& row = sum.rows[r];
    double value = element(rows[r], row.is_partial ? accumulator : sum.dtype, i);
    if (!row.is_partial && row.scales != nullptr) value = rounded(value * row.scales[i / 128], accumulator);
    if (!row.is_partial && sum.weighted) value = rounded(value * row.weight, accumulator);
    waiting.push_back(value);
    for (int merge = 0; merge < row.merges; ++merge) {
      const double right = waiting.back();
      waiting.pop_back();
      waiting.back() = rounded(waiting.back() + right, accumulator);
    }
  }
  return waiting.front();
}

std::vector<std::byte> encoded(double value, DType dtype) {
  std::vector<std::byte> bytes(size_of(dtype));
  const auto store = [&](auto element) { std::memcpy(bytes.data(), &element, sizeof element); };
  if (dtype == DType::kFloat64) store(value);
  if (dtype == DType::kFloat32) store(static_cast<float>(value));
  if (dtype == DType::kFloat16) store(HalfReference::float16().encode(value));
  if (dtype == DType::kBFloat16) store(HalfReference::bfloat16().encode(value));
  return bytes;
}

void expect_bits(const Case& test, const std::vector<std::uint16_t>& merges, std::size_t width, unsigned seed) {
  std::mt19937 random(seed);
  const DType accumulator = tree_accumulator(test.dtype);
  std::vector<RowBytes> rows;
  std::vector<TreeRow> operands;
  std::vector<std::vector<float>> scales;
  for (std::size_t r = 0; r < merges.size(); ++r) {
    const bool is_partial = random() % 3 == 0;
    rows.push_back(random_row(random, is_partial ? accumulator : test.dtype, width));
    scales.emplace_back((width + 127) / 128);
    for (float& scale : scales.back()) scale = 0.25F + static_cast<float>(random() % 100) / 37.0F;
    operands.push_back({nullptr, is_partial, merges[r], 0.5 + static_cast<double>(random() % 100) / 32});
  }
  for (std::size_t r = 0; r < rows.size(); ++r) {
    operands[r].data = rows[r].data();
    if (test.scaled) operands[r].scales = scales[r].data();
  }
  const std::size_t element_bytes = size_of(test.y_dtype);
  std::vector<std::byte> y((width + 4) * element_bytes, std::byte{0x5A});
  const TreeSum sum{operands, test.dtype, test.weighted, y.data(), test.y_dtype, width};
  sum_rows(sum);
  for (std::size_t i = 0; i < width; ++i) {
    const std::vector<std::byte> wanted = encoded(expected(sum, rows, i), test.y_dtype);
    ASSERT_EQ(std::memcmp(wanted.data(), &y[i * element_bytes], element_bytes), 0)
        << to_string(test.dtype) << " to " << to_string(test.y_dtype) << ", element " << i << " of " << width;
  }
  for (std::size_t i = width * element_bytes; i < y.size(); ++i) ASSERT_EQ(y[i], std::byte{0x5A}) << "behind the row";
}

TEST_P(RowTrees, are_bit_identical_to_separate_additions) {
  // A single row; a chain; a balanced tree; a tree that grows to the right, so that sums wait.
  const std::vector<std::vector<std::uint16_t>> trees = {
      {0}, {0, 1}, {0, 1, 1, 1}, {0, 1, 0, 2, 0, 1, 0, 3}, {0, 0, 0, 0, 4}, {0, 0, 1, 0, 2, 0, 3}};
  unsigned seed = 1;
  for (const Case& test : kCases)
    for (const auto& merges : trees)
      for (const std::size_t width : {1, 7, 16, 31, 128, 129, 300}) expect_bits(test, merges, width, ++seed);
}

TEST_P(RowTrees, a_tree_may_be_as_deep_as_the_bits_of_its_keys) {
  std::vector<std::uint16_t> merges(kTreeDepth, 0);
  merges.back() = kTreeDepth - 1;
  expect_bits({DType::kFloat32, DType::kFloat32}, merges, 40, 99);
}

TEST_P(RowTrees, an_empty_tree_is_zero) {
  std::vector<float> y(9, 5.0F);
  sum_rows({.rows = {}, .dtype = DType::kBFloat16, .y = y.data(), .y_dtype = DType::kFloat32, .width = 8});
  EXPECT_EQ(y, (std::vector<float>{0, 0, 0, 0, 0, 0, 0, 0, 5}));
}

TEST(RowTreeDtypes, sums_are_not_stored_wider_than_their_accumulator) {
  EXPECT_TRUE(can_sum_rows(DType::kFloat8E5M2, DType::kFloat16));
  EXPECT_FALSE(can_sum_rows(DType::kFloat32, DType::kFloat64));
  EXPECT_FALSE(can_sum_rows(DType::kFloat64, DType::kFloat32));
  EXPECT_FALSE(can_sum_rows(DType::kInt32, DType::kFloat32));
  EXPECT_FALSE(can_sum_rows(DType::kFloat32, DType::kFloat8E4M3FN));
}

}  // namespace
}  // namespace accord::kernels
