#pragma once
// The sum of some rows in an order that the caller gives as a binary tree.

#include <cstddef>
#include <cstdint>
#include <span>

#include "accord/buffer.hpp"

namespace accord::kernels {

/// Elements of a float8 row that share a scale.
inline constexpr std::size_t kScaleBlock = 128;

/// One row of a sum.
struct TreeRow {
  const void* data = nullptr;
  /// Elements of the accumulator (a sum that somebody began, without weights) instead of the call's dtype.
  bool is_partial = false;
  /// How many times, once this row is there, the last two sums that wait are added; the one before is the left operand.
  std::uint16_t merges = 0;
  double weight = 1.0;  ///< read where the call says so, of rows that are not partial; as the accumulator has it
  const float* scales = nullptr;  ///< of float8 rows: one for each block of kScaleBlock elements; absent: 1
};

/// y = the tree over the rows, in accumulators, rounded once to y's dtype.
struct TreeSum {
  std::span<const TreeRow> rows;  ///< none give zeros; in the end one sum is left
  DType dtype = DType::kFloat32;  ///< of rows that are not partial
  bool weighted = false;          ///< each element is multiplied by its row's weight and rounded before it is added
  void* y = nullptr;
  DType y_dtype = DType::kFloat32;
  std::size_t width = 0;
};

/// What rows of `dtype` are added in: float64 for float64, else float32.
constexpr DType tree_accumulator(DType dtype) { return dtype == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32; }

/// Sums that may wait for each other: a tree over different keys of 32 bits needs no more.
inline constexpr int kTreeDepth = 33;

/// True for float64 to itself, and for float32, float16, bfloat16 and float8 to float32, float16 and bfloat16.
bool can_sum_rows(DType dtype, DType y_dtype);

/// Runs it. Rows and y do not overlap and are aligned to their elements. NaN become the positive quiet one in y of 16 bits. Allocates nothing.
/// REQUIRES: can_sum_rows(). Cost: one read of each row, one write of y.
void sum_rows(const TreeSum& sum);

}  // namespace accord::kernels
