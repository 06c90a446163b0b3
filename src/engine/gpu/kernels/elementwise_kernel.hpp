#pragma once
// The kernel of all elementwise operations on operands of any dtypes and strides: one number of each operand in, one
// number out. Real numbers are computed in float32 and rounded once; integers are computed in 64 bits and wrap.

#include <cmath>

#include "device/quotients.hpp"
#include "engine/gpu/kernels/operands.hpp"
#include "kernels/elementwise/elementwise.hpp"

namespace accord::engine {

ACCORD_ON_DEVICE inline float real_of(kernels::UnaryOp op, float x) {
  using kernels::UnaryOp;
  switch (op) {
    case UnaryOp::kGeluErf: return 0.5F * x * (1.0F + erff(x * 0.70710678118654752F));
    case UnaryOp::kGeluTanh: return 0.5F * x * (1.0F + tanhf(0.79788456080286536F * (x + 0.044715F * x * x * x)));
    case UnaryOp::kRelu: return x < 0.0F ? 0.0F : x;  // NaN stays NaN
    case UnaryOp::kSilu: return x / (1.0F + expf(-x));
    case UnaryOp::kTanh: return tanhf(x);
    case UnaryOp::kSigmoid: return 1.0F / (1.0F + expf(-x));
    case UnaryOp::kExp: return expf(x);
    case UnaryOp::kLog: return logf(x);
    case UnaryOp::kLog1p: return log1pf(x);
    case UnaryOp::kSqrt: return sqrtf(x);
    case UnaryOp::kRsqrt: return 1.0F / sqrtf(x);
    case UnaryOp::kNeg: return -x;
    case UnaryOp::kAbs: return fabsf(x);
    case UnaryOp::kReciprocal: return 1.0F / x;
    case UnaryOp::kErf: return erff(x);
    case UnaryOp::kSin: return sinf(x);
    case UnaryOp::kCos: return cosf(x);
    case UnaryOp::kFloor: return floorf(x);
    case UnaryOp::kCeil: return ceilf(x);
    case UnaryOp::kLogicalNot: return x == 0.0F ? 1.0F : 0.0F;
  }
  return x;
}

ACCORD_ON_DEVICE inline std::int64_t whole_of(kernels::UnaryOp op, std::int64_t x) {
  using kernels::UnaryOp;
  switch (op) {
    case UnaryOp::kNeg: return static_cast<std::int64_t>(0 - static_cast<std::uint64_t>(x));
    case UnaryOp::kAbs: return x < 0 ? static_cast<std::int64_t>(0 - static_cast<std::uint64_t>(x)) : x;
    case UnaryOp::kRelu: return x < 0 ? 0 : x;
    case UnaryOp::kLogicalNot: return x == 0 ? 1 : 0;
    default: return x;
  }
}

/// Comparisons return 0 or 1. kMin and kMax return NaN if either side is NaN. `dtype`: the dtype to which
/// intermediate steps are rounded.
ACCORD_ON_DEVICE inline float real_of(kernels::BinaryOp op, float a, float b, DType dtype) {
  using kernels::BinaryOp;
  switch (op) {
    case BinaryOp::kAdd: return a + b;
    case BinaryOp::kSub: return a - b;
    case BinaryOp::kMul: return a * b;
    case BinaryOp::kDiv: return a / b;
    case BinaryOp::kFloorDiv: return device::floor_quotient(a, b, dtype);
    case BinaryOp::kTruncDiv: return device::trunc_quotient(a, b, dtype);
    case BinaryOp::kMin: return a != a ? a : b != b ? b : a < b ? a : b;
    case BinaryOp::kMax: return a != a ? a : b != b ? b : a > b ? a : b;
    case BinaryOp::kPow: return powf(a, b);
    case BinaryOp::kEq: return a == b;
    case BinaryOp::kNe: return a != b;
    case BinaryOp::kLt: return a < b;
    case BinaryOp::kLe: return a <= b;
    case BinaryOp::kGt: return a > b;
    case BinaryOp::kGe: return a >= b;
    case BinaryOp::kLogicalAnd: return a != 0.0F && b != 0.0F;
    case BinaryOp::kLogicalOr: return a != 0.0F || b != 0.0F;
    case BinaryOp::kLogicalXor: return (a != 0.0F) != (b != 0.0F);
  }
  return a;
}

/// Wraps on overflow. With a negative exponent, the result is 0 unless the base is 1 or -1.
ACCORD_ON_DEVICE inline std::int64_t whole_power(std::int64_t base, std::int64_t exponent) {
  if (exponent < 0) return base == 1 ? 1 : base == -1 ? (exponent % 2 == 0 ? 1 : -1) : 0;
  std::uint64_t result = 1, square = static_cast<std::uint64_t>(base);
  for (; exponent != 0; exponent /= 2, square *= square) {
    if (exponent % 2 != 0) result *= square;
  }
  return static_cast<std::int64_t>(result);
}

/// REQUIRES: no division by zero.
ACCORD_ON_DEVICE inline std::int64_t whole_of(kernels::BinaryOp op, std::int64_t a, std::int64_t b) {
  using kernels::BinaryOp;
  const auto first = static_cast<std::uint64_t>(a), second = static_cast<std::uint64_t>(b);
  switch (op) {
    case BinaryOp::kAdd: return static_cast<std::int64_t>(first + second);
    case BinaryOp::kSub: return static_cast<std::int64_t>(first - second);
    case BinaryOp::kMul: return static_cast<std::int64_t>(first * second);
    case BinaryOp::kDiv: return b == -1 ? static_cast<std::int64_t>(0 - first) : a / b;
    case BinaryOp::kFloorDiv:
      if (b == -1) return static_cast<std::int64_t>(0 - first);
      return a / b - (a % b != 0 && (a < 0) != (b < 0) ? 1 : 0);
    case BinaryOp::kPow: return whole_power(a, b);
    case BinaryOp::kMin: return a < b ? a : b;
    case BinaryOp::kMax: return a > b ? a : b;
    case BinaryOp::kEq: return a == b;
    case BinaryOp::kNe: return a != b;
    case BinaryOp::kLt: return a < b;
    case BinaryOp::kLe: return a <= b;
    case BinaryOp::kGt: return a > b;
    case BinaryOp::kGe: return a >= b;
    case BinaryOp::kLogicalAnd: return a != 0 && b != 0;
    case BinaryOp::kLogicalOr: return a != 0 || b != 0;
    case BinaryOp::kLogicalXor: return (a != 0) != (b != 0);
    default: return a;
  }
}

/// Returns x as an integer of `dtype`, as kernels::convert does. For uint8, only the low 8 bits count.
ACCORD_ON_DEVICE inline std::int64_t truncated(float x, DType dtype) {
  if (dtype == DType::kBool) return x != 0.0F;
  const bool narrow = dtype == DType::kInt32;
  const float lowest = narrow ? -2147483648.0F : -9223372036854775808.0F;
  if (x >= lowest && x < -lowest) return static_cast<std::int64_t>(x);
  return narrow ? INT32_MIN : INT64_MIN;
}

/// Returns x, at least `low` and at most `high`; NaN for NaN.
template <typename T>
ACCORD_ON_DEVICE inline T clamped(T x, T low, T high) {
  const T above = x < low ? low : x;
  return above > high ? high : above;
}

/// y = f(a, b, c), with the numbers `first` and `second` in place of some operands, for all elements of y.
struct ElementwiseCall {
  enum class Form : std::uint8_t {
    kUnary,         ///< unary(a)
    kBinary,        ///< binary(a, b)
    kBinaryScalar,  ///< binary(a, first)
    kGate,          ///< unary(a) * b, where unary(a) is rounded to the dtype of a
    kPower,         ///< a ^ first, by products and roots where they suffice
    kClamp,         ///< a, at least first, at most second
    kWhere,         ///< a ? b : c, where a is bool
    kFill,          ///< first
    kCount,         ///< first + i * second
    kConvert,       ///< a
  };
  Form form = Form::kConvert;
  kernels::UnaryOp unary = {};
  kernels::BinaryOp binary = {};
  bool real = true;  ///< true: computes in float32; false: in integers
  kernels::Scalar first = {}, second = {};
  std::int64_t count = 0;
  Shape shape = {};
  Operand operands[4] = {};  ///< y, a, b, c
  FaultReport report = {};
};

/// Any operation on any operands.
struct Elementwise : ElementwiseCall {
  static constexpr const char* kName = "engine_elementwise";
  static constexpr int kThreads = 256;
  static constexpr bool kStartsEarly = true;

  template <typename Block>
  ACCORD_ON_DEVICE void operator()(Block& block) const {
    block.await_earlier();
    block.start_next();
    for (std::size_t i = block.first(); i < static_cast<std::size_t>(count); i += block.stride()) {
      const auto index = static_cast<std::int64_t>(i);
      const Offsets<4> at = offsets_at(shape, operands, index);
      if (real) {
        store_real(at.of[0], real_at(at, index));
      } else {
        store_whole(at.of[0], whole_at(block, at, index));
      }
    }
  }

 private:
  ACCORD_ON_DEVICE float real_operand(int i, const Offsets<4>& at) const {
    return device::load_float(operands[i].data, operands[i].dtype, at.of[i]);
  }
  ACCORD_ON_DEVICE std::int64_t whole_operand(int i, const Offsets<4>& at) const {
    return device::load_integer(operands[i].data, operands[i].dtype, at.of[i]);
  }
  ACCORD_ON_DEVICE float real_at(const Offsets<4>& at, std::int64_t index) const {
    switch (form) {
      case Form::kUnary: return real_of(unary, real_operand(1, at));
      case Form::kBinary: {
        const DType dtype = operands[1].dtype == operands[2].dtype ? operands[1].dtype : DType::kFloat32;
        return real_of(binary, real_operand(1, at), real_operand(2, at), dtype);
      }
      case Form::kBinaryScalar:
        return real_of(binary, real_operand(1, at), static_cast<float>(first.real), DType::kFloat32);
      case Form::kGate: {
        const float gate = device::rounded_to(operands[1].dtype, real_of(unary, real_operand(1, at)));
        return gate * real_operand(2, at);
      }
      case Form::kPower: return power(real_operand(1, at));
      case Form::kClamp:
        return clamped(real_operand(1, at), static_cast<float>(first.real), static_cast<float>(second.real));
      case Form::kWhere: return real_operand(whole_operand(1, at) != 0 ? 2 : 3, at);
      case Form::kFill: return static_cast<float>(first.real);
      case Form::kCount: return static_cast<float>(first.real + static_cast<double>(index) * second.real);
      case Form::kConvert: return real_operand(1, at);
    }
    return 0.0F;
  }
  template <typename Block>
  ACCORD_ON_DEVICE std::int64_t whole_at(Block& block, const Offsets<4>& at, std::int64_t index) const {
    switch (form) {
      case Form::kUnary: return whole_of(unary, whole_operand(1, at));
      case Form::kBinary:
      case Form::kBinaryScalar: {
        const std::int64_t by = form == Form::kBinary ? whole_operand(2, at) : first.integer;
        const bool divides = binary == kernels::BinaryOp::kDiv || binary == kernels::BinaryOp::kFloorDiv;
        if (divides && by == 0) {
          report.report(block, Fault::kDivision, 0, index, 0);
          return 0;
        }
        return whole_of(binary, whole_operand(1, at), by);
      }
      case Form::kClamp: return clamped(whole_operand(1, at), first.integer, second.integer);
      case Form::kWhere: return whole_operand(whole_operand(1, at) != 0 ? 2 : 3, at);
      case Form::kFill: return first.integer;
      case Form::kCount:
        return static_cast<std::int64_t>(static_cast<std::uint64_t>(first.integer) +
                                         static_cast<std::uint64_t>(index) *
                                             static_cast<std::uint64_t>(second.integer));
      default: return whole_operand(1, at);
    }
  }
  ACCORD_ON_DEVICE float power(float x) const {
    const double exponent = first.real;
    if (exponent == 2.0) return x * x;
    if (exponent == 3.0) return x * x * x;
    if (exponent == -1.0) return 1.0F / x;
    const bool roots = operands[1].dtype != DType::kFloat16;
    if (roots && exponent == 0.5) return sqrtf(x);
    if (roots && exponent == -0.5) return 1.0F / sqrtf(x);
    return powf(x, static_cast<float>(exponent));
  }
  ACCORD_ON_DEVICE static bool is_whole(DType dtype) {
    return dtype == DType::kInt64 || dtype == DType::kInt32 || dtype == DType::kInt16 || dtype == DType::kUInt8 ||
           dtype == DType::kBool;
  }
  ACCORD_ON_DEVICE void store_real(std::int64_t at, float x) const {
    const Operand& y = operands[0];
    if (is_whole(y.dtype)) {
      device::store_integer(y.data, y.dtype, at, truncated(x, y.dtype));
    } else {
      device::store_float(y.data, y.dtype, at, x);
    }
  }
  ACCORD_ON_DEVICE void store_whole(std::int64_t at, std::int64_t x) const {
    const Operand& y = operands[0];
    if (is_whole(y.dtype)) {
      device::store_integer(y.data, y.dtype, at, x);
    } else {
      device::store_float(y.data, y.dtype, at, static_cast<float>(x));
    }
  }
};

}  // namespace accord::engine
