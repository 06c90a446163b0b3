#pragma once
// Elementwise kernels over strided, broadcasting views. Inputs are broadcast to the output's sizes by NumPy's rule.
// An output may have exactly the same memory and layout as an input, but must not overlap it otherwise.
//
// Every op that supports float32 also supports float16 and bfloat16: it computes in float32 and rounds once.
//
// All functions fail with kInvalidArgument if the sizes do not fit, and with kUnsupported, which names the op and the
// dtypes, if a combination has no kernel. There are no other implicit conversions: both sides of a binary op have the
// same dtype (use `convert`). Cost: one pass. Operands whose innermost stride is 0 or 1 run at vector speed; others
// are gathered through small blocks.

#include <cstdint>
#include <string_view>

#include "kernels/view.hpp"

namespace accord::kernels {

/// float32 supports all ops; int32 and int64 support kNeg, kAbs and kRelu; bool supports kLogicalNot only.
/// kLogicalNot also accepts the other dtypes, with bool output.
enum class UnaryOp : std::uint8_t {
  kGeluErf,
  kGeluTanh,
  kRelu,
  kSilu,
  kTanh,
  kSigmoid,
  kExp,
  kLog,
  kLog1p,
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

/// y = op(x). The relative error is at most 4 ulp where the function is well conditioned; for gelu the absolute error
/// is at most 1e-6 * max(1, |x|).
Status unary(UnaryOp op, const ConstView& x, const View& y);

/// y = x ^ exponent, like std::pow. Exponents 2, 3, -1, 0.5 and -0.5 are exact apart from the rounding of their own
/// operations. float32.
Status pow_scalar(const ConstView& x, double exponent, const View& y);

/// Arithmetic ops: float32, int32 and int64; the result has the same dtype. Integers wrap, kDiv of integers
/// truncates, and integer division by zero fails with kInvalidArgument.
/// Comparisons: float32, int32, int64, uint8 and bool; the result is bool.
/// Logical ops: any dtype (0 is false); the result is bool.
/// kMin and kMax return NaN if either side is NaN, like torch.minimum.
/// kFloorDiv rounds down; kTruncDiv (floats only) rounds toward 0. kFloorDiv of floats is exact, as in Python: for
/// 6 and 0.3 it gives 19, because the float 0.3 is slightly larger than 0.3. If both operands have the same 16-bit
/// dtype, both ops round each step to that dtype (device/quotients.hpp).
/// kPow of integers wraps; a negative exponent gives 0 unless the base is 1 or -1.
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

/// A number passed by value, interpreted in the dtype of the view it is used with.
struct Scalar {
  double real = 0.0;
  std::int64_t integer = 0;  ///< used for int32, int64, uint8 and bool
  /// Creates a scalar from `value`. Its integer form is truncated and saturated; NaN becomes 0.
  static Scalar of(double value);
  static Scalar of(std::int64_t value) { return {static_cast<double>(value), value}; }
};

/// y = a op scalar.
Status binary_scalar(BinaryOp op, const ConstView& a, Scalar b, const View& y);

/// y = condition ? a : b. `condition` is bool; the other operands share one dtype, which may be any.
Status where(const ConstView& condition, const ConstView& a, const ConstView& b, const View& y);

/// y = min(max(x, low), high); NaN stays NaN. float32, int32 and int64. A bound beyond the dtype's range has no
/// effect. REQUIRES: no bound is NaN.
Status clamp(const ConstView& x, Scalar low, Scalar high, const View& y);

/// Sets every element to `value`. Supports every dtype. A bool becomes true unless `value` is 0.
Status fill(Scalar value, const View& y);

/// y[i] = start + i * step over one dimension. float32, int32 and int64 (integers wrap).
Status arange(Scalar start, Scalar step, const View& y);

/// Converts as PyTorch does on x86.
/// Float to int32 or int64 truncates; NaN and values out of range become the lowest number. Float to uint8 converts
/// to int64 and keeps the low 8 bits. Integers wrap. Conversion to bool tests for nonzero.
/// Supports float32, int32, int64, uint8 and bool, and float16 and bfloat16 by way of float32 (rounding to nearest
/// even). If both dtypes are the same, copies.
Status convert(const ConstView& x, const View& y);

}  // namespace accord::kernels
