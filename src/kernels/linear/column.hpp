#pragma once
// One output's weights in a panel, for packing and unpacking. Products read panels vector by vector instead
// (sources_simd.hpp).

#include <cstddef>
#include <cstdint>

#include "kernels/linear/format.hpp"

namespace accord::kernels {

constexpr int kMinGroup = 16, kMaxGroup = 128;

/// Rounds `value` to the scale type; the result is infinite if `value` exceeds that type, or the nearest integer of
/// kInt8.
float rounded_scale(float value, DType type);

/// Column `column` of a panel of width `width` with `in` inputs (whole words and groups).
class Column {
 public:
  Column(const PackedFormat& format, std::byte* panel, std::int64_t in, std::int64_t width, std::int64_t column);

  /// For unquantized formats: `count` inputs, starting at the first, rounded to nearest. `count` must be even where a
  /// word holds two inputs.
  void write_floats(const float* values, std::int64_t count) const;
  void read_floats(float* values, std::int64_t count) const;

  /// For quantized formats: writes all codes of a group.
  void write_group(std::int64_t group, float scale, float minimum, const std::uint8_t* codes) const;
  /// Dequantizes a group to fp32.
  void read_group(std::int64_t group, float* values) const;
  /// For formats with super-groups: writes the float16 scales of a super-group's scales and minima.
  void write_super_group(std::int64_t super_group, float scale, float minimum) const;

 private:
  /// Returns a scale (index 0) or minimum (index 1) of a group, times that of its super-group.
  float scale_of_group(std::int64_t group, std::int64_t index) const;
  std::byte* at(std::byte* words, std::int64_t word) const { return words + (word * width_ + column_) * 4; }

  PackedFormat format_;
  std::byte* panel_;
  std::int64_t width_, column_;
  std::int64_t super_bytes_, group_bytes_, scale_bytes_;
  std::byte* groups_;  // behind the scales of super-groups
};

}  // namespace accord::kernels
