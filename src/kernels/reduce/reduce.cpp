// Selects the kernel for each combination of dtype and op. bool is an integer of 0 and 1 with the arithmetic of truth
// values.
#include "kernels/reduce/reduce.hpp"

#include "kernels/reduce/families.hpp"

namespace accord::kernels {
namespace {

ReduceKernel bool_reduce_kernel(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kMax:
    case ReduceOp::kBor: return integer_reduce_kernel(DType::kUInt8, ReduceOp::kBor);
    case ReduceOp::kProduct:
    case ReduceOp::kMin:
    case ReduceOp::kBand: return integer_reduce_kernel(DType::kUInt8, ReduceOp::kBand);
    case ReduceOp::kBxor: return integer_reduce_kernel(DType::kUInt8, ReduceOp::kBxor);
    case ReduceOp::kAvg:
    case ReduceOp::kPremulSum: break;
  }
  return nullptr;
}

}  // namespace

ReduceKernel reduce_kernel(DType dtype, ReduceOp op) {
  if (!is_defined(op, dtype)) return nullptr;
  switch (kind_of(dtype)) {
    case DTypeKind::kInteger: return integer_reduce_kernel(dtype, op);
    case DTypeKind::kComplex: return complex_reduce_kernel(dtype, op);
    case DTypeKind::kBool: return bool_reduce_kernel(op);
    case DTypeKind::kFloat: break;
  }
  const bool narrow = dtype != DType::kFloat32 && dtype != DType::kFloat64;
  return narrow ? narrow_float_reduce_kernel(dtype, op) : float_reduce_kernel(dtype, op);
}

}  // namespace accord::kernels
