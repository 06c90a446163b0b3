// float32, float64 and complex pairs of them are read directly. Smaller floats are decoded from sign, exponent and
// mantissa.
#include "base/element.hpp"

#include <algorithm>
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

/// A float of at most 16 bits. With `has_infinity`, the largest exponent encodes infinity and NaN, as in IEEE 754;
/// without, only the largest magnitude is NaN.
struct SmallFloat {
  int exponent_bits;
  int mantissa_bits;
  bool has_infinity = true;

  int bits(double value) const {
    const int largest = (1 << exponent_bits) - 1, bias = largest / 2, unit = 1 << mantissa_bits;
    const int sign = std::signbit(value) ? 1 << (exponent_bits + mantissa_bits) : 0;
    const int infinity = largest << mantissa_bits;
    if (std::isnan(value)) return has_infinity ? infinity | unit / 2 : infinity | (unit - 1);
    // The largest finite magnitude.
    const int last = has_infinity ? infinity - 1 : infinity | (unit - 2);
    const double magnitude = std::fabs(value);
    const int exponent = magnitude == 0 ? 1 - bias : std::max(std::ilogb(std::min(magnitude, 1e300)), 1 - bias);
    // A mantissa that rounds up to the next power of two carries into the exponent.
    const double rounded = std::nearbyint(std::ldexp(magnitude, mantissa_bits - exponent));
    const double whole = rounded + std::ldexp(exponent + bias - 1, mantissa_bits);
    if (whole <= last) return sign | static_cast<int>(whole);
    return sign | (has_infinity ? infinity : last);
  }
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

template <typename T>
void write(double number, void* to) {
  const auto value = static_cast<T>(number);
  std::memcpy(to, &value, sizeof(T));
}

}  // namespace

void store_number(double number, DType dtype, void* to) {
  switch (dtype) {
    case DType::kFloat16: return write<std::uint16_t>(SmallFloat{5, 10}.bits(number), to);
    case DType::kBFloat16: return write<std::uint16_t>(SmallFloat{8, 7}.bits(number), to);
    case DType::kFloat32: return write<float>(number, to);
    case DType::kFloat8E4M3FN: return write<std::uint8_t>(SmallFloat{4, 3, false}.bits(number), to);
    case DType::kFloat8E5M2: return write<std::uint8_t>(SmallFloat{5, 2}.bits(number), to);
    default: return write<double>(number, to);
  }
}

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
