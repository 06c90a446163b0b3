// The small and batched products of attention call oneDNN's sgemm directly.

#include "kernels/gemm.hpp"

#include <fmt/format.h>
#include <oneapi/dnnl/dnnl.h>
#include <oneapi/dnnl/dnnl_debug.h>

#include <algorithm>

#include "kernels/one_thread.hpp"

namespace accord::kernels {

namespace {

// The stride to pass for `rows` rows of `width`. With fewer than two rows the caller's stride does not matter.
std::int64_t stride_of_rows(std::int64_t rows, std::int64_t width, std::int64_t stride) {
  return rows > 1 ? stride : std::max(stride, width);
}

// Computes the result of a product with k = 0, which only scales c.
void scale_outputs(const GemmCall& call) {
  for (std::int64_t i = 0; i < call.batch; ++i) {
    for (std::int64_t row = 0; row < call.m; ++row) {
      float* const c = call.c + i * call.c_batch_stride + row * call.c_row_stride;
      for (std::int64_t column = 0; column < call.n; ++column)
        c[column] = call.beta == 0.0F ? 0.0F : c[column] * call.beta;
    }
  }
}

}  // namespace

Status gemm(const GemmCall& call) {
  const bool transposed = call.transpose_b == Transpose::kYes;
  const std::int64_t a_stride = stride_of_rows(call.m, call.k, call.a_row_stride);
  const std::int64_t b_stride = transposed ? stride_of_rows(call.n, call.k, call.b_row_stride)
                                           : stride_of_rows(call.k, call.n, call.b_row_stride);
  const std::int64_t c_stride = stride_of_rows(call.m, call.n, call.c_row_stride);
  if (call.m < 0 || call.n < 0 || call.k < 0 || call.batch < 0 || a_stride < call.k ||
      b_stride < (transposed ? call.k : call.n) || c_stride < call.n) {
    return {StatusCode::kInvalidArgument,
            fmt::format(
                "gemm [{} x {}] times [{} x {}], batch {}: a row stride ({}, {} or {}) is too small, or a size is "
                "negative",
                call.m, call.k, call.k, call.n, call.batch, call.a_row_stride, call.b_row_stride, call.c_row_stride)};
  }
  if (call.m == 0 || call.n == 0) return {};
  if (call.k == 0) {
    scale_outputs(call);
    return {};
  }
  const OneThread one_thread;
  for (std::int64_t i = 0; i < call.batch; ++i) {
    const dnnl_status_t status = dnnl_sgemm(
        'N', transposed ? 'T' : 'N', call.m, call.n, call.k, call.alpha, call.a + i * call.a_batch_stride, a_stride,
        call.b + i * call.b_batch_stride, b_stride, call.beta, call.c + i * call.c_batch_stride, c_stride);
    if (status != dnnl_success) {
      return {StatusCode::kInternal, fmt::format("gemm [{} x {}] times [{} x {}]: oneDNN says {}", call.m, call.k,
                                                 call.k, call.n, dnnl_status2str(status))};
    }
  }
  return {};
}

}  // namespace accord::kernels
