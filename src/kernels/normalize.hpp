#pragma once
// Normalizations over the last dimension of rows of fp32; the norms also support 16-bit floats. Rows are
// `*_row_stride` elements apart and each is contiguous. An output may be the same memory as an input row for row, but
// must not overlap it otherwise.
// Everything is computed row by row on the calling thread. Sums use several fp32 lanes, so results may differ in the
// last bits between instruction sets. Cost: one or two reads of each input from memory and one write. A row count of
// 0 does nothing.

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

/// The parameters of layer_norm and rms_norm.
template <typename T>
struct NormParametersOf {
  const T* weight = nullptr;  ///< [width], or nullptr for ones
  const T* bias = nullptr;    ///< [width], or nullptr for zeros; layer_norm only
  float eps = 1e-5F;
  const T* addend = nullptr;    ///< [width], added to each row of x first, or nullptr
  const T* residual = nullptr;  ///< [rows, width], added to x (+ addend), or nullptr
  std::int64_t residual_row_stride = 0;
  /// Where x + addend + residual (the next residual) is also written, or nullptr. May be x or residual.
  T* sum = nullptr;
  std::int64_t sum_row_stride = 0;
};
using NormParameters = NormParametersOf<float>;

/// y = (s - mean(s)) / sqrt(variance(s) + eps) * weight + bias with s = x + addend + residual. Each sum is rounded to
/// T, as in PyTorch. The variance is the biased one, computed in two passes over the row. Computes in fp32. T: float,
/// Float16 or BFloat16.
template <typename T>
void layer_norm(const RowsOf<T>& rows, const NormParametersOf<T>& parameters);

/// y = s / sqrt(mean(s^2) + eps) * weight with s = x + addend + residual.
template <typename T>
void rms_norm(const RowsOf<T>& rows, const NormParametersOf<T>& parameters);

/// y = exp(x - max) / sum. A row of -infinity becomes NaN, as in PyTorch's softmax.
void softmax(const RowsCall& rows);

/// y = log(softmax(x)), computed as x - max - log(sum).
void log_softmax(const RowsCall& rows);

}  // namespace accord::kernels
