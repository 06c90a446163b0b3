#pragma once
// The largest or smallest elements of rows.

#include <cstdint>

#include "accord/buffer.hpp"

namespace accord::kernels {

enum class Extreme : std::uint8_t { kLargest, kSmallest };

struct TopKCall {
  Extreme extreme = Extreme::kLargest;
  DType dtype = DType::kFloat32;  ///< of x and values; one of can_take_top_k()
  const void* x = nullptr;        ///< [rows, width], rows `x_row_stride` elements apart
  std::int64_t rows = 0, width = 0, x_row_stride = 0;
  std::int64_t k = 0;               ///< <= width
  void* values = nullptr;           ///< [rows, k], the most extreme first
  std::int64_t* indices = nullptr;  ///< [rows, k]: where in its row each stands; of equal ones the first comes first
};

/// float32, int32, int64, uint8.
bool can_take_top_k(DType dtype);

/// NaN counts as largest, as in PyTorch. Allocates nothing. Cost: one pass over the rows and, where they are in the worst
/// order, k times that.
void top_k(const TopKCall& call);

}  // namespace accord::kernels
