#pragma once
// One output's weights in a panel, for packing and unpacking. Products read panels vector by vector instead
// (sources_simd.hpp).

#include <cstddef>
#include <cstdint>

#include "kernels/linear/format.hpp"

namespace accord::kernels {

constexpr int kMaxGroup = 128;

/// Rounds `value` to the scale type; the result is infinite if `value` exceeds that type.
float rounded_scale(float value, DType type);

/// Column `column` of a panel of width `width`.
class Column {
 public:
  Column(const PackedFormat& format, std::byte* panel, std::int64_t width, std::int64_t column);

  /// For unquantized formats: `count` inputs, starting at the first, rounded to nearest. `count` must be even where a
  /// word holds two inputs.
  void write_floats(const float* values, std::int64_t count) const;
  void read_floats(float* values, std::int64_t count) const;

  /// For quantized formats: writes all codes of a group.
  void write_group(std::int64_t group, float scale, float minimum, const std::uint8_t* codes) const;
  /// Dequantizes a group to fp32.
  void read_group(std::int64_t group, float* values) const;

 private:
  std::byte* at(std::byte* words, std::int64_t word) const { return words + (word * width_ + column_) * 4; }

  PackedFormat format_;
  std::byte* panel_;
  std::int64_t width_, column_;
  std::int64_t group_bytes_, scale_bytes_;
};

}  // namespace accord::kernels
