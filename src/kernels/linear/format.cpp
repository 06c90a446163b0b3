// Sizes of packed weights, as defined in the header.

#include "kernels/linear/format.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "base/rounding.hpp"

namespace accord::kernels {

int PackedFormat::bits() const {
  switch (type) {
    case WeightType::kFloat32: return 32;
    case WeightType::kBFloat16:
    case WeightType::kFloat16: return 16;
    case WeightType::kInt8:
    case WeightType::kFloat8: return 8;
    case WeightType::kInt6: return 6;
    case WeightType::kInt5: return 5;
    case WeightType::kInt4:
    case WeightType::kTable4: return 4;
  }
  return 0;
}

bool PackedFormat::has_integers() const {
  const auto is_integer = [](float number) {
    return number >= -128.0F && number <= 127.0F && number == std::nearbyint(number);
  };
  return quantized() && (type != WeightType::kTable4 || std::all_of(table.begin(), table.end(), is_integer));
}

std::int64_t PackedFormat::super_groups_of(std::int64_t in) const {
  return has_super_groups() ? quotient_up(in, kSuperGroup) : 0;
}

PackedFormat format_of(DType dtype) {
  PackedFormat format;
  if (dtype == DType::kBFloat16) format.type = WeightType::kBFloat16;
  if (dtype == DType::kFloat16) format.type = WeightType::kFloat16;
  return format;
}

Status check(const PackedFormat& format) {
  if (format.type == WeightType::kFloat8) {
    constexpr std::array kGroups = {0, 16, 32, 64, 128};
    const bool known = std::find(kGroups.begin(), kGroups.end(), format.group) != kGroups.end();
    if (known && format.minimum == Minimum::kNone && format.scale_type == DType::kFloat32) return {};
    return {StatusCode::kInvalidArgument,
            fmt::format(
                "packed weights of float8_e4m3fn in groups of {} with {} and scales of {}: they must have one float32 "
                "scale for each output, or for each 16, 32, 64 or 128 of its inputs, and no minima",
                format.group, format.minimum == Minimum::kNone ? "no minima" : "minima", to_string(format.scale_type))};
  }
  const bool named = format.group == 32 || format.group == 64 || format.group == 128;
  const bool is_finite =
      std::all_of(format.table.begin(), format.table.end(), [](float x) { return std::isfinite(x); });
  if (!is_finite) return {StatusCode::kInvalidArgument, "packed weights with a table: its numbers must be finite"};
  const bool has_short_groups =
      format.quantized() && format.type != WeightType::kInt8 && format.type != WeightType::kInt5;
  const bool short_group = has_short_groups && format.group == 16;
  const bool group = format.quantized() ? named || short_group : format.group == 0;
  const bool has_minima = format.quantized() && format.type != WeightType::kInt6 && format.type != WeightType::kTable4;
  const bool minimum = format.minimum == Minimum::kNone || has_minima;
  const bool scale = format.scale_type == DType::kFloat16 || format.scale_type == DType::kFloat32 ||
                     (format.scale_type == DType::kInt8 && format.quantized());
  if (format.bits() != 0 && group && minimum && scale) return {};
  return {
      StatusCode::kInvalidArgument,
      fmt::format("packed weights of {} bits in groups of {} with {} and scales of {}: a group must have 32, 64 or "
                  "128 inputs with 8, 6, 5 and 4 bits (or 16 with 6 and 4) and 0 otherwise, minima require 8, 5 or 4 "
                  "bits and no table, and scales must be float16, float32 or, of groups, int8",
                  format.bits(), format.group, format.minimum == Minimum::kNone ? "no minima" : "minima",
                  to_string(format.scale_type))};
}

std::int64_t padded_in(const PackedFormat& format, std::int64_t in) {
  if (format.quantized()) return round_up(in, format.group);
  return format.type == WeightType::kBFloat16 ? round_up(in, 2) : in;
}

std::int64_t panels_of(std::int64_t out) { return (out + kPanelWidth - 1) / kPanelWidth; }

std::int64_t panel_width(std::int64_t out, std::int64_t panel) {
  return std::min(kPanelWidth, round_up(out - panel * kPanelWidth, kWidthStep));
}

std::size_t scale_bytes(const PackedFormat& format, std::int64_t width) {
  if (!format.quantized()) return 0;
  const std::size_t each = size_of(format.scale_type) * (format.minimum == Minimum::kPerGroup ? 2 : 1);
  return each * static_cast<std::size_t>(width);
}

std::size_t super_scale_bytes(const PackedFormat& format, std::int64_t width) {
  if (!format.has_super_groups()) return 0;
  const std::size_t each = size_of(DType::kFloat16) * (format.minimum == Minimum::kPerGroup ? 2 : 1);
  return each * static_cast<std::size_t>(width);
}

std::size_t input_bytes(const PackedFormat& format, std::int64_t inputs, std::int64_t width) {
  const std::size_t weights = static_cast<std::size_t>(inputs * width * format.bits() / 8);
  if (!format.quantized()) return weights;
  return weights + static_cast<std::size_t>(inputs / format.group) * scale_bytes(format, width);
}

std::size_t panel_bytes(const PackedFormat& format, std::int64_t in, std::int64_t width) {
  const auto super_groups = static_cast<std::size_t>(format.super_groups_of(in));
  return super_groups * super_scale_bytes(format, width) + input_bytes(format, in, width);
}

std::size_t packed_bytes(const PackedFormat& format, std::int64_t out, std::int64_t in) {
  if (format.type == WeightType::kFloat8) {
    const auto scales = static_cast<std::size_t>(format.scales_of(in));
    return static_cast<std::size_t>(out) * (sizeof(float) * scales + static_cast<std::size_t>(in));
  }
  return panel_bytes(format, padded_in(format, in), round_up(out, kWidthStep));
}

PackedMatrix packed_matrix(const PackedFormat& format, std::int64_t out, std::int64_t in, const std::byte* data) {
  PackedMatrix matrix;
  matrix.format = format;
  matrix.out_unit = out;
  matrix.in_unit = in;
  matrix.data = data;
  return matrix;
}

}  // namespace accord::kernels
