#pragma once
// Products of two activation matrices in fp32, by oneDNN, each on the calling thread alone. Products with weights are
// in linear/.

#include <cstddef>
#include <cstdint>

#include "accord/status.hpp"

namespace accord::kernels {

enum class Transpose : std::uint8_t { kNo, kYes };

/// c = alpha * a * b + beta * c, or with b transposed, for `batch` independent row-major matrices. Strides are in
/// floats.
struct GemmCall {
  std::int64_t m = 0, n = 0, k = 0;
  const float* a = nullptr;  ///< [m, k]
  std::int64_t a_row_stride = 0;
  const float* b = nullptr;  ///< [k, n], or [n, k] when transposed
  std::int64_t b_row_stride = 0;
  Transpose transpose_b = Transpose::kNo;
  float* c = nullptr;  ///< [m, n]; not read when beta is 0
  std::int64_t c_row_stride = 0;
  float alpha = 1.0F;
  float beta = 0.0F;
  std::int64_t batch = 1;  ///< matrix i is at offset i * *_batch_stride; a stride of 0 repeats an operand
  std::int64_t a_batch_stride = 0, b_batch_stride = 0, c_batch_stride = 0;
};

/// Runs on the calling thread. Thread-safe. Fails with kInvalidArgument for wrong sizes.
Status gemm(const GemmCall& call);

}  // namespace accord::kernels
