#pragma once
// The results of reductions, one element at a time: every dtype is decoded, combined by the canonical tree, and
// encoded.

#include <bit>
#include <cmath>
#include <complex>
#include <cstring>
#include <type_traits>
#include <vector>

#include "accord/buffer.hpp"
#include "half_reference.hpp"

namespace accord::kernels {

template <typename T>
T combine(ReduceOp op, T a, T b) {
  if constexpr (std::is_integral_v<T>) {
    const auto x = static_cast<std::uint64_t>(a), y = static_cast<std::uint64_t>(b);  // wraps; upper bits are cut off
    switch (op) {
      case ReduceOp::kProduct: return static_cast<T>(x * y);
      case ReduceOp::kMin: return a < b ? a : b;
      case ReduceOp::kMax: return a < b ? b : a;
      case ReduceOp::kBand: return static_cast<T>(x & y);
      case ReduceOp::kBor: return static_cast<T>(x | y);
      case ReduceOp::kBxor: return static_cast<T>(x ^ y);
      default: return static_cast<T>(x + y);
    }
  } else {
    if (op == ReduceOp::kProduct) return a * b;
    if (op != ReduceOp::kMin && op != ReduceOp::kMax) return a + b;
    if (std::isnan(a) || std::isnan(b)) return NAN;
    const bool a_is_less = a < b || (a == b && std::signbit(a) && !std::signbit(b));
    return (op == ReduceOp::kMin) == a_is_less ? a : b;
  }
}

template <typename T>
std::complex<T> multiply(std::complex<T> a, std::complex<T> b) {
  return {a.real() * b.real() - a.imag() * b.imag(), a.real() * b.imag() + a.imag() * b.real()};
}

template <typename T>
std::complex<T> combine(ReduceOp op, std::complex<T> a, std::complex<T> b) {
  return op == ReduceOp::kProduct ? multiply(a, b) : a + b;
}

// The canonical tree by definition: split at the largest power of two below n.
template <typename T, typename Leaf>
T tree(ReduceOp op, int first, int n, Leaf leaf) {
  if (n == 1) return leaf(first);
  const int left = static_cast<int>(std::bit_floor(static_cast<unsigned>(n - 1)));
  return combine(op, tree<T>(op, first, left, leaf), tree<T>(op, first + left, n - left, leaf));
}

inline std::uint32_t bits_of(float value) {
  return std::isnan(value) ? 0x7FC00000U : std::bit_cast<std::uint32_t>(value);
}
inline std::uint64_t bits_of(double value) {
  return std::isnan(value) ? 0x7FF8000000000000U : std::bit_cast<std::uint64_t>(value);
}

/// A dtype whose elements have the bits `Bits` and are computed in `Value`.
template <typename Bits_, typename Value_>
struct Reference {
  using Bits = Bits_;
  using Value = Value_;
  Value (*decode)(Bits);
  Bits (*encode)(Value);

  /// Returns the result of `op` for sources with these bits. `factors`: for premul_sum.
  Bits reduce(ReduceOp op, const std::vector<Bits>& sources, const std::vector<std::complex<double>>& factors) const {
    const int n = static_cast<int>(sources.size());
    const auto leaf = [&](int i) -> Value {
      const Value value = decode(sources[static_cast<std::size_t>(i)]);
      if (op != ReduceOp::kPremulSum) return value;
      return scaled(value, factors[static_cast<std::size_t>(i)]);
    };
    const Value result = tree<Value>(op, 0, n, leaf);
    return encode(op == ReduceOp::kAvg ? divided(result, n) : result);
  }

 private:
  static Value scaled(Value value, std::complex<double> factor) {
    if constexpr (std::is_floating_point_v<Value>) {
      return value * static_cast<Value>(factor.real());
    } else if constexpr (std::is_integral_v<Value>) {
      return value;
    } else {
      return multiply(value, Value(factor));
    }
  }
  static Value divided(Value value, int n) {
    if constexpr (std::is_unsigned_v<Value>) {
      return static_cast<Value>(value / static_cast<unsigned>(n));
    } else if constexpr (std::is_integral_v<Value>) {
      return static_cast<Value>(value / static_cast<std::int64_t>(n));
    } else if constexpr (std::is_floating_point_v<Value>) {
      return value / static_cast<Value>(n);
    } else {
      const auto divisor = static_cast<typename Value::value_type>(n);
      return {value.real() / divisor, value.imag() / divisor};
    }
  }
};

template <typename T>
Reference<T, T> integer_reference() {
  return {[](T bits) { return bits; }, [](T value) { return value; }};
}

template <const HalfReference& (*kFormat)(), typename Bits>
Reference<Bits, float> narrow_reference() {
  return {[](Bits bits) { return static_cast<float>(kFormat().decode(bits)); },
          [](float value) { return static_cast<Bits>(kFormat().encode(value)); }};
}

template <typename T, typename Bits>
Reference<Bits, T> float_reference() {
  return {[](Bits bits) { return std::bit_cast<T>(bits); }, [](T value) { return bits_of(value); }};
}

/// The bits of a complex number: those of its parts.
template <typename Bits>
struct Parts {
  Bits real{}, imaginary{};
  bool operator==(const Parts&) const = default;
};

template <typename T, typename Bits>
Reference<Parts<Bits>, std::complex<T>> complex_reference() {
  return {
      [](Parts<Bits> bits) { return std::complex<T>(std::bit_cast<T>(bits.real), std::bit_cast<T>(bits.imaginary)); },
      [](std::complex<T> value) {
        return Parts<Bits>{bits_of(value.real()), bits_of(value.imag())};
      }};
}

/// Calls `use(reference)` for `dtype`.
template <typename Use>
void with_reference(DType dtype, Use use) {
  switch (dtype) {
    case DType::kInt8: return use(integer_reference<std::int8_t>());
    case DType::kInt16: return use(integer_reference<std::int16_t>());
    case DType::kInt32: return use(integer_reference<std::int32_t>());
    case DType::kInt64: return use(integer_reference<std::int64_t>());
    case DType::kUInt8: return use(integer_reference<std::uint8_t>());
    case DType::kUInt16: return use(integer_reference<std::uint16_t>());
    case DType::kUInt32: return use(integer_reference<std::uint32_t>());
    case DType::kUInt64: return use(integer_reference<std::uint64_t>());
    case DType::kFloat16: return use(narrow_reference<&HalfReference::float16, std::uint16_t>());
    case DType::kBFloat16: return use(narrow_reference<&HalfReference::bfloat16, std::uint16_t>());
    case DType::kFloat32: return use(float_reference<float, std::uint32_t>());
    case DType::kFloat64: return use(float_reference<double, std::uint64_t>());
    case DType::kFloat8E4M3FN: return use(narrow_reference<&HalfReference::float8_e4m3fn, std::uint8_t>());
    case DType::kFloat8E5M2: return use(narrow_reference<&HalfReference::float8_e5m2, std::uint8_t>());
    case DType::kComplex64: return use(complex_reference<float, std::uint32_t>());
    case DType::kComplex128: return use(complex_reference<double, std::uint64_t>());
    case DType::kBool: break;  // by its truth table, see reduce_test.cpp
  }
}

}  // namespace accord::kernels
