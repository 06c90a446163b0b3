#pragma once
// The row kernels of elementwise.hpp, for the best instruction set of this machine. Each is implemented in the .cpp
// of its name. All functions return nullptr if a combination has no kernel.

#include "kernels/elementwise/elementwise.hpp"
#include "kernels/elementwise/row_loop.hpp"

namespace accord::kernels {

RowKernel unary_row_kernel(UnaryOp op, DType input, DType output);
/// Reads `exponent` from parameters.real[0]. Exponents 0.5 and -0.5 use square roots unless parameters.integer[0] is
/// 1.
RowKernel pow_row_kernel();
/// If `input` is float16 or bfloat16, returns only the ops that round between steps; these take rows of float32.
RowKernel binary_row_kernel(BinaryOp op, DType input, DType output);
RowKernel convert_row_kernel(DType input, DType output);
/// Converts `count` contiguous elements. REQUIRES: there is a kernel for the two dtypes.
inline void convert_between(DType from_type, const void* from, DType to_type, void* to, std::int64_t count) {
  convert_row_kernel(from_type, to_type)(&from, to, count, {});
}
/// The inputs are condition, a and b. a and b have elements of `element_bytes` bytes.
RowKernel where_row_kernel(std::size_t element_bytes);
/// Reads the limits, low and high, from the parameters.
RowKernel clamp_row_kernel(DType dtype);
/// Copies elements of `element_bytes` bytes.
RowKernel copy_row_kernel(std::size_t element_bytes);

}  // namespace accord::kernels
