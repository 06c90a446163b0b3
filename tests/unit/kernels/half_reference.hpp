#pragma once
// Floats of 8 and 16 bits by definition: a table of all values, and a search in it. Slow, and independent of the
// kernels.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

namespace accord::kernels {

/// A format of `exponent_bits` and `mantissa_bits`, either by IEEE rules or, like OCP's E4M3, without infinity, with
/// the largest magnitude as NaN, and saturating.
class HalfReference {
 public:
  enum class Rules { kIeee, kFinite };

  HalfReference(int exponent_bits, int mantissa_bits, std::uint16_t nan, Rules rules = Rules::kIeee)
      : sign_(static_cast<std::uint16_t>(1 << (exponent_bits + mantissa_bits))), nan_(nan) {
    const int bias = (1 << (exponent_bits - 1)) - 1;
    beyond_ = rules == Rules::kIeee ? static_cast<std::uint16_t>(((1 << exponent_bits) - 1) << mantissa_bits) : nan;
    for (int bits = 0; bits <= beyond_; ++bits) {  // "beyond" is the next value after the largest
      const int exponent = bits >> mantissa_bits;
      const double mantissa = static_cast<double>(bits & ((1 << mantissa_bits) - 1)) / (1 << mantissa_bits);
      values_.push_back(exponent == 0 ? std::ldexp(mantissa, 1 - bias) : std::ldexp(1.0 + mantissa, exponent - bias));
    }
  }
  static const HalfReference& float16() {
    static const HalfReference reference(5, 10, 0x7E00);
    return reference;
  }
  static const HalfReference& bfloat16() {
    static const HalfReference reference(8, 7, 0x7FC0);
    return reference;
  }
  static const HalfReference& float8_e4m3fn() {
    static const HalfReference reference(4, 3, 0x7F, Rules::kFinite);
    return reference;
  }
  static const HalfReference& float8_e5m2() {
    static const HalfReference reference(5, 2, 0x7F);
    return reference;
  }

  double decode(std::uint16_t bits) const {
    const auto magnitude = static_cast<std::uint16_t>(bits & (sign_ - 1));
    const bool is_nan = magnitude > beyond_ || (magnitude == beyond_ && beyond_ == nan_);
    const double value = is_nan ? NAN : magnitude == beyond_ ? HUGE_VAL : values_[magnitude];
    return (bits & sign_) != 0 ? -value : value;
  }

  /// Rounds to nearest, ties to even; every NaN becomes the positive quiet one.
  std::uint16_t encode(double value) const {
    if (std::isnan(value)) return nan_;
    const auto magnitude = static_cast<std::uint16_t>(encode_magnitude(std::fabs(value)));
    const bool saturates = magnitude == nan_;
    return static_cast<std::uint16_t>((magnitude - (saturates ? 1 : 0)) | (std::signbit(value) ? sign_ : 0));
  }

 private:
  int encode_magnitude(double magnitude) const {
    if (magnitude >= values_.back()) return beyond_;
    const auto above = std::upper_bound(values_.begin(), values_.end(), magnitude);
    const int low = static_cast<int>(above - values_.begin() - 1);
    const double to_low = magnitude - values_[static_cast<std::size_t>(low)], to_high = *above - magnitude;
    const bool up = to_high < to_low || (to_high == to_low && (low & 1) != 0);
    return low + (up ? 1 : 0);
  }

  std::uint16_t sign_;
  std::uint16_t nan_;
  std::uint16_t beyond_ = 0;
  std::vector<double> values_;
};

}  // namespace accord::kernels
