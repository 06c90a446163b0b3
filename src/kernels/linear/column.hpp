#pragma once
// One output's weights in a panel, for packing and its inverse; products read panels by vectors (sources_simd.hpp).

#include <cstddef>
#include <cstdint>

#include "kernels/linear/format.hpp"

namespace accord::kernels {

constexpr int kMaxGroup = 128;

/// `value` as a type of scales has it; infinite if it exceeds that.
float rounded_scale(float value, DType type);

/// Column `column` of a panel of that width.
class Column {
 public:
  Column(const PackedFormat& format, std::byte* panel, std::int64_t width, std::int64_t column);

  /// Formats of floats: `count` inputs from the first on (pairs, where words hold two), rounded to nearest.
  void write_floats(const float* values, std::int64_t count) const;
  void read_floats(float* values, std::int64_t count) const;

  /// Quantized formats: all codes of a group.
  void write_group(std::int64_t group, float scale, float minimum, const std::uint8_t* codes) const;
  /// The values that a group stands for, in fp32.
  void read_group(std::int64_t group, float* values) const;

 private:
  std::byte* at(std::byte* words, std::int64_t word) const { return words + (word * width_ + column_) * 4; }

  PackedFormat format_;
  std::byte* panel_;
  std::int64_t width_, column_;
  std::int64_t group_bytes_, scale_bytes_;
};

}  // namespace accord::kernels
