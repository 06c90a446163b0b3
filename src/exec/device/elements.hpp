#pragma once
// How elements of each dtype are combined on devices, one at a time, bit-identical to the host's kernels
// (kernels/reduce/reduce.hpp).
//
// A type has: Stored, an element in memory; Sum, the type of the computation; widen() and narrow(); combine() by an
// op.

#include <bit>
#include <cstdint>
#include <type_traits>

#include "accord/buffer.hpp"
#include "device/kernel.hpp"
#include "device/numbers.hpp"

namespace accord::exec {

/// Equal values with different bits can only be -0 and +0: the lower is -0.
template <typename T>
ACCORD_ON_DEVICE T minimum(T a, T b) {
  if constexpr (std::is_floating_point_v<T>) {
    using Bits = std::conditional_t<sizeof(T) == 8, std::uint64_t, std::uint32_t>;
    if (a != a) return a;
    if (b != b) return b;
    if (a == b) return std::bit_cast<T>(static_cast<Bits>(std::bit_cast<Bits>(a) | std::bit_cast<Bits>(b)));
  }
  return b < a ? b : a;
}
template <typename T>
ACCORD_ON_DEVICE T maximum(T a, T b) {
  if constexpr (std::is_floating_point_v<T>) {
    using Bits = std::conditional_t<sizeof(T) == 8, std::uint64_t, std::uint32_t>;
    if (a != a) return a;
    if (b != b) return b;
    if (a == b) return std::bit_cast<T>(static_cast<Bits>(std::bit_cast<Bits>(a) & std::bit_cast<Bits>(b)));
  }
  return a < b ? b : a;
}

/// Computed in T, which is float or double.
template <typename T>
struct FloatingSum {
  using Sum = T;
  ACCORD_ON_DEVICE static Sum combine(ReduceOp op, Sum a, Sum b) {
    switch (op) {
      case ReduceOp::kProduct: return a * b;
      case ReduceOp::kMin: return minimum(a, b);
      case ReduceOp::kMax: return maximum(a, b);
      default: return a + b;
    }
  }
  ACCORD_ON_DEVICE static Sum divide(Sum a, int n) { return a / static_cast<T>(n); }
};

template <typename T>
struct FloatElement : FloatingSum<T> {
  using Stored = T;
  ACCORD_ON_DEVICE static T widen(Stored x) { return x; }
  ACCORD_ON_DEVICE static Stored narrow(T x) { return device::canonical(x); }
};

struct Float16Element : FloatingSum<float> {
  using Stored = std::uint16_t;
  ACCORD_ON_DEVICE static float widen(Stored x) { return device::from_float16(x); }
  ACCORD_ON_DEVICE static Stored narrow(float x) { return device::to_float16(x); }
};

struct BFloat16Element : FloatingSum<float> {
  using Stored = std::uint16_t;
  ACCORD_ON_DEVICE static float widen(Stored x) { return device::from_bfloat16(x); }
  ACCORD_ON_DEVICE static Stored narrow(float x) { return device::to_bfloat16(x); }
};

template <typename Format>
struct Float8Element : FloatingSum<float> {
  using Stored = std::uint8_t;
  ACCORD_ON_DEVICE static float widen(Stored x) { return device::from_minifloat<Format>(x); }
  ACCORD_ON_DEVICE static Stored narrow(float x) { return static_cast<Stored>(device::to_minifloat<Format>(x)); }
};

/// Sums and products wrap; an average is the wrapped sum divided toward zero.
template <typename T>
struct IntegerElement {
  using Stored = T;
  using Sum = T;
  using Bits = std::make_unsigned_t<T>;
  ACCORD_ON_DEVICE static Sum widen(Stored x) { return x; }
  ACCORD_ON_DEVICE static Stored narrow(Sum x) { return x; }
  ACCORD_ON_DEVICE static Sum combine(ReduceOp op, Sum a, Sum b) {
    // In 64 bits, since narrow types would be promoted to a signed one.
    const auto x = static_cast<std::uint64_t>(static_cast<Bits>(a)),
               y = static_cast<std::uint64_t>(static_cast<Bits>(b));
    switch (op) {
      case ReduceOp::kProduct: return static_cast<Sum>(static_cast<Bits>(x * y));
      case ReduceOp::kMin: return minimum(a, b);
      case ReduceOp::kMax: return maximum(a, b);
      case ReduceOp::kBand: return static_cast<Sum>(static_cast<Bits>(x & y));
      case ReduceOp::kBor: return static_cast<Sum>(static_cast<Bits>(x | y));
      case ReduceOp::kBxor: return static_cast<Sum>(static_cast<Bits>(x ^ y));
      default: return static_cast<Sum>(static_cast<Bits>(x + y));
    }
  }
  ACCORD_ON_DEVICE static Sum divide(Sum a, int n) {
    using Wide = std::conditional_t<std::is_signed_v<T>, std::int64_t, std::uint64_t>;
    return static_cast<Sum>(static_cast<Wide>(a) / static_cast<Wide>(n));
  }
};

/// A byte of 0 or 1.
struct BoolElement : IntegerElement<std::uint8_t> {
  ACCORD_ON_DEVICE static Sum combine(ReduceOp op, Sum a, Sum b) {
    switch (op) {
      case ReduceOp::kProduct:
      case ReduceOp::kMin:
      case ReduceOp::kBand: return static_cast<Sum>(a & b);
      case ReduceOp::kBxor: return static_cast<Sum>(a ^ b);
      default: return static_cast<Sum>(a | b);
    }
  }
};

template <typename T>
struct ComplexElement {
  struct alignas(2 * sizeof(T)) Stored {
    T real, imaginary;
  };
  using Sum = Stored;
  ACCORD_ON_DEVICE static Sum widen(Stored x) { return x; }
  ACCORD_ON_DEVICE static Stored narrow(Sum x) { return {device::canonical(x.real), device::canonical(x.imaginary)}; }
  ACCORD_ON_DEVICE static Sum combine(ReduceOp op, Sum a, Sum b) {
    if (op == ReduceOp::kProduct)
      return {a.real * b.real - a.imaginary * b.imaginary, a.real * b.imaginary + a.imaginary * b.real};
    return {a.real + b.real, a.imaginary + b.imaginary};
  }
  ACCORD_ON_DEVICE static Sum divide(Sum a, int n) {
    return {a.real / static_cast<T>(n), a.imaginary / static_cast<T>(n)};
  }
};

/// The element type of a dtype.
template <DType kDType>
struct ElementOf;
template <>
struct ElementOf<DType::kInt8> : IntegerElement<std::int8_t> {};
template <>
struct ElementOf<DType::kInt16> : IntegerElement<std::int16_t> {};
template <>
struct ElementOf<DType::kInt32> : IntegerElement<std::int32_t> {};
template <>
struct ElementOf<DType::kInt64> : IntegerElement<std::int64_t> {};
template <>
struct ElementOf<DType::kUInt8> : IntegerElement<std::uint8_t> {};
template <>
struct ElementOf<DType::kUInt16> : IntegerElement<std::uint16_t> {};
template <>
struct ElementOf<DType::kUInt32> : IntegerElement<std::uint32_t> {};
template <>
struct ElementOf<DType::kUInt64> : IntegerElement<std::uint64_t> {};
template <>
struct ElementOf<DType::kFloat16> : Float16Element {};
template <>
struct ElementOf<DType::kBFloat16> : BFloat16Element {};
template <>
struct ElementOf<DType::kFloat32> : FloatElement<float> {};
template <>
struct ElementOf<DType::kFloat64> : FloatElement<double> {};
template <>
struct ElementOf<DType::kFloat8E4M3FN> : Float8Element<device::E4M3FN> {};
template <>
struct ElementOf<DType::kFloat8E5M2> : Float8Element<device::E5M2> {};
template <>
struct ElementOf<DType::kComplex64> : ComplexElement<float> {};
template <>
struct ElementOf<DType::kComplex128> : ComplexElement<double> {};
template <>
struct ElementOf<DType::kBool> : BoolElement {};

/// The type in which a switch adds elements of a dtype.
constexpr device::SwitchSum switch_sum_of(DType dtype) {
  switch (dtype) {
    case DType::kInt32:
    case DType::kUInt32: return device::SwitchSum::kUInt32;
    case DType::kInt64:
    case DType::kUInt64: return device::SwitchSum::kUInt64;
    case DType::kFloat16: return device::SwitchSum::kFloat16;
    case DType::kBFloat16: return device::SwitchSum::kBFloat16;
    case DType::kFloat32: return device::SwitchSum::kFloat32;
    case DType::kFloat64: return device::SwitchSum::kFloat64;
    default: return device::SwitchSum::kNone;
  }
}
template <typename Element>
inline constexpr device::SwitchSum kSwitchSum = device::SwitchSum::kNone;
template <DType kDType>
inline constexpr device::SwitchSum kSwitchSum<ElementOf<kDType>> = switch_sum_of(kDType);

}  // namespace accord::exec
