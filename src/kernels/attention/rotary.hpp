#pragma once
// Rotary position embedding.

#include <cstdint>

namespace accord::kernels {

/// `heads` heads of `dim` floats (even, contiguous) for each of `rows` tokens. Strides are in floats. `cos` and `sin`
/// are [rows, dim], with rows `table_row_stride` apart.
struct RotaryCall {
  const float* x = nullptr;
  std::int64_t x_row_stride = 0, x_head_stride = 0;
  const float* cos = nullptr;
  const float* sin = nullptr;
  std::int64_t table_row_stride = 0;
  float* y = nullptr;
  std::int64_t y_row_stride = 0, y_head_stride = 0;
  std::int64_t rows = 0;
  std::int64_t heads = 0;
  std::int64_t dim = 0;
};

/// y = x cos + (-second half of x, first half of x) sin, head by head. y must not overlap any input. Cost: one pass.
void rotary(const RotaryCall& call);

}  // namespace accord::kernels
