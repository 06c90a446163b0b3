#pragma once
// The largest or smallest elements of rows.

#include <cstdint>

#include "accord/buffer.hpp"

namespace accord::kernels {

enum class Extreme : std::uint8_t { kLargest, kSmallest };

struct TopKCall {
  Extreme extreme = Extreme::kLargest;
  DType dtype = DType::kFloat32;  ///< of x and values; must satisfy can_take_top_k()
  const void* x = nullptr;        ///< [rows, width]; rows are `x_row_stride` elements apart
  std::int64_t rows = 0, width = 0, x_row_stride = 0;
  std::int64_t k = 0;      ///< <= width
  void* values = nullptr;  ///< [rows, k], the most extreme first
  /// [rows, k]: position in the row of each value; equal values are ordered by position
  std::int64_t* indices = nullptr;
};

/// True for float32, int32, int64 and uint8.
bool can_take_top_k(DType dtype);

/// NaN counts as the largest value, as in PyTorch. Allocates nothing. Cost: one pass over the rows; if they are in
/// the worst order, k times that.
void top_k(const TopKCall& call);

}  // namespace accord::kernels
