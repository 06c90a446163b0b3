#pragma once
// The sum of several rows in an order that the caller specifies as a binary tree.

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
  /// True if the elements have the accumulator's dtype (a sum begun elsewhere, without weights) instead of the call's
  /// dtype.
  bool is_partial = false;
  /// How many times to add the last two pending sums after this row is pushed; the earlier one is the left operand.
  std::uint16_t merges = 0;
  /// used if TreeSum::weighted, for rows that are not partial; converted to the accumulator's dtype
  double weight = 1.0;
  const float* scales = nullptr;  ///< for float8 rows: one per block of kScaleBlock elements; null means 1
};

/// y = the tree over the rows, computed in accumulators and rounded once to y's dtype.
struct TreeSum {
  std::span<const TreeRow> rows;  ///< if empty, y is zeros; exactly one sum must remain at the end
  DType dtype = DType::kFloat32;  ///< dtype of the rows that are not partial
  bool weighted = false;          ///< multiplies each element by its row's weight and rounds it before it is added
  void* y = nullptr;
  DType y_dtype = DType::kFloat32;
  std::size_t width = 0;
};

/// The dtype in which rows of `dtype` are added: float64 for float64, otherwise float32.
constexpr DType tree_accumulator(DType dtype) { return dtype == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32; }

/// Maximum number of pending sums. A tree over distinct 32-bit keys needs no more.
inline constexpr int kTreeDepth = 33;

/// True for float64 to itself, and for float32, float16, bfloat16 and float8 to float32, float16 and bfloat16.
bool can_sum_rows(DType dtype, DType y_dtype);

/// Computes the sum. Rows and y must not overlap, and must be aligned to their elements. NaN becomes the positive
/// quiet NaN in a 16-bit y. Allocates nothing.
/// REQUIRES: can_sum_rows(). Cost: one read of each row, one write of y.
void sum_rows(const TreeSum& sum);

}  // namespace accord::kernels
