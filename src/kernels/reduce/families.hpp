#pragma once
// The reduction kernels of each kind of dtype; reduce.cpp combines them into one table.
// REQUIRES: is_defined(op, dtype).

#include "kernels/reduce/reduce.hpp"

namespace accord::kernels {

/// float32, float64.
ReduceKernel float_reduce_kernel(DType dtype, ReduceOp op);
/// float16, bfloat16, float8_e4m3fn, float8_e5m2: computed in fp32.
ReduceKernel narrow_float_reduce_kernel(DType dtype, ReduceOp op);
/// Integers of all widths. bool uses uint8 with values 0 and 1.
ReduceKernel integer_reduce_kernel(DType dtype, ReduceOp op);
ReduceKernel complex_reduce_kernel(DType dtype, ReduceOp op);

}  // namespace accord::kernels
