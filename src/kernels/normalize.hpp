#pragma once
// Normalizations over the last dimension of rows of fp32. Rows lie `*_row_stride` floats apart, each contiguous; an output
// may be the same memory as an input row for row, not overlap it otherwise. Computed row by row on the calling thread; sums
// are carried in several fp32 lanes, so results may differ in the last bits between instruction sets. One or two reads of
// each input from memory, one write. A row count of 0 does nothing.

#include <cstdint>

namespace accord::kernels {

/// `rows` rows of `width` floats.
struct RowsCall {
  const float* x = nullptr;
  std::int64_t x_row_stride = 0;
  float* y = nullptr;
  std::int64_t y_row_stride = 0;
  std::int64_t rows = 0;
  std::int64_t width = 0;
};

/// What layer_norm and rms_norm take beside their rows.
struct NormParameters {
  const float* weight = nullptr;  ///< [width], or nullptr for ones
  const float* bias = nullptr;    ///< [width], or nullptr for zeros; layer_norm only
  float eps = 1e-5F;
  const float* residual = nullptr;  ///< [rows, width], added to x first, or nullptr
  std::int64_t residual_row_stride = 0;
  float* sum = nullptr;  ///< where x + residual is also written (the next residual), or nullptr; may be x or residual
  std::int64_t sum_row_stride = 0;
};

/// y = (s - mean(s)) / sqrt(variance(s) + eps) * weight + bias with s = x + residual; the variance is the biased one, by two
/// passes over the row.
void layer_norm(const RowsCall& rows, const NormParameters& parameters);

/// y = s / sqrt(mean(s^2) + eps) * weight with s = x + residual.
void rms_norm(const RowsCall& rows, const NormParameters& parameters);

/// y = exp(x - max) / sum; a row of -infinity gives NaN, as PyTorch's softmax does.
void softmax(const RowsCall& rows);

/// y = log(softmax(x)), computed as x - max - log(sum).
void log_softmax(const RowsCall& rows);

}  // namespace accord::kernels
