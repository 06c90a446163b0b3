#pragma once
// The row kernels of elementwise.hpp, for the best instruction set of this machine; each in the .cpp of its name. All are
// nullptr where a combination has no kernel.

#include "kernels/elementwise.hpp"
#include "kernels/row_loop.hpp"

namespace accord::kernels {

RowKernel unary_row_kernel(UnaryOp op, DType input, DType output);
/// `exponent` is read from parameters.real[0]. Roots are taken as such unless parameters.integer[0] is 1.
RowKernel pow_row_kernel();
/// For `input` float16 and bfloat16 only the ops that round between steps, over rows of float32.
RowKernel binary_row_kernel(BinaryOp op, DType input, DType output);
RowKernel convert_row_kernel(DType input, DType output);
/// Of `count` elements without gaps. REQUIRES: there is a kernel.
inline void convert_between(DType from_type, const void* from, DType to_type, void* to, std::int64_t count) {
  convert_row_kernel(from_type, to_type)(&from, to, count, {});
}
/// Inputs condition, a, b; elements of that many bytes.
RowKernel where_row_kernel(std::size_t element_bytes);
/// Limits from parameters, low and high.
RowKernel clamp_row_kernel(DType dtype);
/// Copies elements of that many bytes.
RowKernel copy_row_kernel(std::size_t element_bytes);

}  // namespace accord::kernels
