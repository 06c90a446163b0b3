#pragma once
// Normalizations over the last dimension of rows of fp32, the norms also of 16-bit floats. Rows lie `*_row_stride` elements
// apart, each contiguous; an output may be the same memory as an input row for row, not overlap it otherwise. Computed row by
// row on the calling thread; sums are carried in several fp32 lanes, so results may differ in the last bits between instruction
// sets. One or two reads of each input from memory, one write. A row count of 0 does nothing.

#include <cstdint>

#include "kernels/small_floats.hpp"

namespace accord::kernels {

/// `rows` rows of `width` elements.
template <typename T>
struct RowsOf {
  const T* x = nullptr;
  std::int64_t x_row_stride = 0;
  T* y = nullptr;
  std::int64_t y_row_stride = 0;
  std::int64_t rows = 0;
  std::int64_t width = 0;
};
using RowsCall = RowsOf<float>;

/// What layer_norm and rms_norm take beside their rows.
template <typename T>
struct NormParametersOf {
  const T* weight = nullptr;  ///< [width], or nullptr for ones
  const T* bias = nullptr;    ///< [width], or nullptr for zeros; layer_norm only
  float eps = 1e-5F;
  const T* addend = nullptr;    ///< [width], added to each row of x first, or nullptr
  const T* residual = nullptr;  ///< [rows, width], added to x (+ addend), or nullptr
  std::int64_t residual_row_stride = 0;
  T* sum =
      nullptr;  ///< where x + addend + residual is also written (the next residual), or nullptr; may be x or residual
  std::int64_t sum_row_stride = 0;
};
using NormParameters = NormParametersOf<float>;

/// y = (s - mean(s)) / sqrt(variance(s) + eps) * weight + bias with s = x + addend + residual, each sum rounded to T as PyTorch does; the variance
/// is the biased one, by two passes over the row. Computed in fp32. T: float, Float16 or BFloat16.
template <typename T>
void layer_norm(const RowsOf<T>& rows, const NormParametersOf<T>& parameters);

/// y = s / sqrt(mean(s^2) + eps) * weight with s = x + addend + residual.
template <typename T>
void rms_norm(const RowsOf<T>& rows, const NormParametersOf<T>& parameters);

/// y = exp(x - max) / sum; a row of -infinity gives NaN, as PyTorch's softmax does.
void softmax(const RowsCall& rows);

/// y = log(softmax(x)), computed as x - max - log(sum).
void log_softmax(const RowsCall& rows);

}  // namespace accord::kernels
