// float32, float64 and pairs of them are read as they are; smaller floats are taken apart: sign, exponent, mantissa.
#include "base/element.hpp"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

namespace accord {
namespace {

template <typename T>
T read(const void* from) {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}

template <typename T>
std::complex<double> read_complex(const void* from) {
  return {read<T>(from), read<T>(static_cast<const std::byte*>(from) + sizeof(T))};
}

/// A float of at most 16 bits. `has_infinity`: the largest exponent holds infinity and NaN, as IEEE has it; else only the largest
/// magnitude is NaN.
struct SmallFloat {
  int exponent_bits;
  int mantissa_bits;
  bool has_infinity = true;

  double value(int bits) const {
    const int sign = bits >> (exponent_bits + mantissa_bits);
    const int largest = (1 << exponent_bits) - 1, bias = largest / 2;
    const int exponent = (bits >> mantissa_bits) & largest, mantissa = bits & ((1 << mantissa_bits) - 1);
    double magnitude = exponent == 0 ? std::ldexp(mantissa, 1 - bias - mantissa_bits)
                                     : std::ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
    if (has_infinity && exponent == largest) magnitude = mantissa == 0 ? HUGE_VAL : NAN;
    if (!has_infinity && exponent == largest && mantissa == (1 << mantissa_bits) - 1) magnitude = NAN;
    return sign != 0 ? -magnitude : magnitude;
  }
};

}  // namespace

std::complex<double> number_at(const void* from, DType dtype) {
  switch (dtype) {
    case DType::kFloat16: return SmallFloat{5, 10}.value(read<std::uint16_t>(from));
    case DType::kBFloat16: return SmallFloat{8, 7}.value(read<std::uint16_t>(from));
    case DType::kFloat32: return read<float>(from);
    case DType::kFloat64: return read<double>(from);
    case DType::kFloat8E4M3FN: return SmallFloat{4, 3, false}.value(read<std::uint8_t>(from));
    case DType::kFloat8E5M2: return SmallFloat{5, 2}.value(read<std::uint8_t>(from));
    case DType::kComplex64: return read_complex<float>(from);
    case DType::kComplex128: return read_complex<double>(from);
    default: return std::numeric_limits<double>::quiet_NaN();
  }
}

}  // namespace accord
