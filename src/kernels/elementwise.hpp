#pragma once
// Elementwise kernels over strided, broadcasting views. Inputs are broadcast to the output's sizes (NumPy's rule). An output
// may be exactly the same memory and layout as an input, not overlap it otherwise.
//
// float16 and bfloat16 are served where float32 is: computed in float32 and rounded once.
//
// All return kInvalidArgument where sizes do not fit and kUnsupported, naming op and dtypes, where a combination has no
// kernel. Operands are not converted otherwise: both sides of a binary op have one dtype (use `convert`). Cost: one pass; operands
// whose innermost stride is 0 or 1 run at vector speed, others are gathered through small blocks.

#include <cstdint>
#include <string_view>

#include "kernels/view.hpp"

namespace accord::kernels {

/// On float32 all; on int32 and int64 kNeg, kAbs and kRelu; on bool kLogicalNot only (also bool output of the others' types).
enum class UnaryOp : std::uint8_t {
  kGeluErf,
  kGeluTanh,
  kRelu,
  kSilu,
  kTanh,
  kSigmoid,
  kExp,
  kLog,
  kSqrt,
  kRsqrt,
  kNeg,
  kAbs,
  kReciprocal,
  kErf,
  kSin,
  kCos,
  kFloor,
  kCeil,
  kLogicalNot,
};
std::string_view to_string(UnaryOp op);

/// y = op(x). Relative error <= 4 ulp where the function is well conditioned; gelu absolute error <= 1e-6 * max(1, |x|).
Status unary(UnaryOp op, const ConstView& x, const View& y);

/// y = x ^ exponent, as std::pow; exact for 2, 3, -1, 0.5 and -0.5 up to their own roundings. float32.
Status pow_scalar(const ConstView& x, double exponent, const View& y);

/// Arithmetic: float32, int32, int64 (wraps; kDiv of integers truncates, division by zero is kInvalidArgument),
/// result of the same dtype. Comparisons: float32, int32, int64, uint8, bool, result bool. Logical: any dtype (0 is
/// false), result bool. kMin and kMax give NaN if either side is NaN, as torch.minimum. kFloorDiv rounds down,
/// kTruncDiv (of floats only) toward 0; of floats kFloorDiv is exact as Python's is: 6 // 0.3 is 19, since 0.3 is a
/// little more than that. Of two operands of one 16-bit dtype both round each step to it (device/quotients.hpp). kPow
/// of integers wraps; a negative exponent gives 0 unless the base is 1 or -1.
enum class BinaryOp : std::uint8_t {
  kAdd,
  kSub,
  kMul,
  kDiv,
  kFloorDiv,
  kTruncDiv,
  kMin,
  kMax,
  kPow,
  kEq,
  kNe,
  kLt,
  kLe,
  kGt,
  kGe,
  kLogicalAnd,
  kLogicalOr,
  kLogicalXor,
};
std::string_view to_string(BinaryOp op);

/// y = a op b.
Status binary(BinaryOp op, const ConstView& a, const ConstView& b, const View& y);

/// A number given by value, read as the dtype of the view beside it.
struct Scalar {
  double real = 0.0;
  std::int64_t integer = 0;  ///< used for int32, int64, uint8 and bool
  /// As a whole number `value` is truncated and saturated; NaN gives 0.
  static Scalar of(double value);
  static Scalar of(std::int64_t value) { return {static_cast<double>(value), value}; }
};

/// y = a op scalar.
Status binary_scalar(BinaryOp op, const ConstView& a, Scalar b, const View& y);

/// y = condition ? a : b; condition bool, the others of one dtype of any kind.
Status where(const ConstView& condition, const ConstView& a, const ConstView& b, const View& y);

/// y = min(max(x, low), high), NaN stays NaN; float32, int32, int64. A bound past the dtype's range is none.
/// REQUIRES: no bound is NaN.
Status clamp(const ConstView& x, Scalar low, Scalar high, const View& y);

/// Every element becomes `value`; every dtype. A bool is true unless `value` is 0.
Status fill(Scalar value, const View& y);

/// y[i] = start + i * step over one dimension; float32, int32, int64 (wraps).
Status arange(Scalar start, Scalar step, const View& y);

/// Converts as PyTorch does on x86. Float to int32 and int64 truncates; what is out of range, and NaN, gives the
/// lowest number. To uint8 goes by way of int64, of which the low 8 bits stay. Integers wrap. To bool: not zero.
/// Between float32, int32, int64, uint8 and bool, and float16 and bfloat16 by way of float32 (to nearest even). The
/// same dtype copies.
Status convert(const ConstView& x, const View& y);

}  // namespace accord::kernels
