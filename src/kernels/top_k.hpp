#pragma once
// The largest or smallest elements of rows.

#include <cstdint>

namespace accord::kernels {

enum class Extreme : std::uint8_t { kLargest, kSmallest };

struct TopKCall {
  Extreme extreme = Extreme::kLargest;
  const float* x = nullptr;  ///< [rows, width], rows `x_row_stride` floats apart
  std::int64_t rows = 0, width = 0, x_row_stride = 0;
  std::int64_t k = 0;               ///< <= width
  float* values = nullptr;          ///< [rows, k], the most extreme first
  std::int64_t* indices = nullptr;  ///< [rows, k]: where in its row each stands; of equal ones the first comes first
};

/// NaN counts as largest, as in PyTorch. Allocates nothing. Cost: one pass over the rows and, where they are in the worst
/// order, k times that.
void top_k(const TopKCall& call);

}  // namespace accord::kernels
