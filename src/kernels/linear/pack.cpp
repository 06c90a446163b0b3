// Works output by output: a row of the weight is converted to fp32, then converted or quantized group by group, and
// written to its column of the panel. For float8 it is written to its row.

#include "kernels/linear/pack.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/elementwise/row_kernels.hpp"
#include "kernels/linear/column.hpp"
#include "kernels/linear/float8.hpp"

namespace accord::kernels {

namespace {

struct QuantizedGroup {
  float scale = 0.0F, minimum = 0.0F;
  std::uint8_t codes[kMaxGroup];
};

// Quantizes `count` values; the rest of the group gets the code of zero. Returns false if a scale exceeds its type.
bool quantize(const PackedFormat& format, const float* values, std::int64_t count, QuantizedGroup& group) {
  float low = values[0], high = values[0];
  for (std::int64_t i = 1; i < count; ++i) {
    low = std::min(low, values[i]);
    high = std::max(high, values[i]);
  }
  const float extreme = std::fabs(low) > std::fabs(high) ? low : high;
  float scale = 0.0F, minimum = 0.0F;
  if (format.minimum == Minimum::kPerGroup) {
    minimum = low;
    scale = high / 15.0F - low / 15.0F;
  } else {
    scale = format.type == WeightType::kInt8 ? std::fabs(extreme) / 127.0F : extreme / -8.0F;
  }
  group.scale = rounded_scale(scale, format.scale_type);
  group.minimum = rounded_scale(minimum, format.scale_type);
  if (!std::isfinite(group.scale) || !std::isfinite(group.minimum)) return false;
  const double inverse = group.scale == 0.0F ? 0.0 : 1.0 / static_cast<double>(group.scale);
  const double offset = static_cast<double>(group.minimum);
  const double zero = format.zero(), largest = format.codes() - 1;
  std::fill(group.codes, group.codes + format.group, static_cast<std::uint8_t>(format.zero()));
  for (std::int64_t i = 0; i < count; ++i) {
    const double code = (static_cast<double>(values[i]) - offset) * inverse + zero;
    group.codes[i] = static_cast<std::uint8_t>(std::lround(std::min(std::max(code, 0.0), largest)));
  }
  return true;
}

struct ErrorSum {
  double largest = 0.0, squares = 0.0, squares_of_given = 0.0;
  PackError result() const { return {largest, squares_of_given > 0.0 ? std::sqrt(squares / squares_of_given) : 0.0}; }
  void add(const float* given, const float* packed, std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i) {
      if (!std::isfinite(given[i])) continue;
      const double error = static_cast<double>(packed[i]) - static_cast<double>(given[i]);
      largest = std::max(largest, std::fabs(error));
      squares += error * error;
      squares_of_given += static_cast<double>(given[i]) * static_cast<double>(given[i]);
    }
  }
};

// Packs one output of a weight. `row` is padded with zeros after its inputs. Returns the first input of a group that
// cannot be quantized, or -1 on success.
std::int64_t pack_row(const PackedFormat& format, const std::vector<float>& row, std::int64_t in, const Column& column,
                      std::vector<float>& back, ErrorSum& error) {
  const std::int64_t padded = static_cast<std::int64_t>(row.size());
  if (!format.quantized()) {
    column.write_floats(row.data(), padded);
    column.read_floats(back.data(), padded);
  }
  QuantizedGroup group;
  for (std::int64_t first = 0; format.quantized() && first < padded; first += format.group) {
    const float* const values = row.data() + first;
    const std::int64_t count = std::min<std::int64_t>(format.group, in - first);
    const bool finite = std::all_of(values, values + count, [](float value) { return std::isfinite(value); });
    if (!finite || !quantize(format, values, count, group)) return first;
    column.write_group(first / format.group, group.scale, group.minimum, group.codes);
    column.read_group(first / format.group, back.data() + first);
  }
  error.add(row.data(), back.data(), in);
  return -1;
}

// Loads row `output` of the source as fp32 and pads it with zeros.
void load_row(const WeightSource& source, std::int64_t output, std::vector<float>& row) {
  const std::byte* const first = static_cast<const std::byte*>(source.data);
  const std::int64_t element = static_cast<std::int64_t>(size_of(source.dtype));
  const RowKernel to_float = convert_row_kernel(source.dtype, DType::kFloat32);
  std::fill(row.begin() + source.in, row.end(), 0.0F);
  const std::int64_t count = source.in_stride == 1 ? source.in : 1;
  for (std::int64_t i = 0; i < source.in; i += count) {
    const void* const input = first + (output * source.out_stride + i * source.in_stride) * element;
    to_float(&input, row.data() + i, count, {});
  }
}

std::string weight_name(std::int64_t out, std::int64_t in) { return fmt::format("packed weights [{}, {}]", out, in); }

Status check(const WeightSource& source, const PackedFormat& format, std::int64_t first, std::int64_t last,
             std::size_t bytes) {
  ACCORD_RETURN_IF_ERROR(check(format));
  const bool range = source.out > 0 && source.in > 0 && first >= 0 && first <= last && last <= source.out &&
                     first % kPanelWidth == 0 && (last % kPanelWidth == 0 || last == source.out);
  if (is_real(source.dtype) && range && bytes >= packed_bytes(format, source.out, source.in)) return {};
  return {StatusCode::kInvalidArgument,
          fmt::format("{}: outputs {} to {} of {} into {} bytes: sizes must be positive, ranges must consist of whole "
                      "panels of {}, the dtype must be float32, bfloat16 or float16, and packed_bytes() must fit",
                      weight_name(source.out, source.in), first, last, to_string(source.dtype), bytes, kPanelWidth)};
}

Result<PackError> pack_float8(const WeightSource& source, const PackedFormat& format, std::int64_t first,
                              std::int64_t last, std::span<std::byte> to) {
  if (source.scales == nullptr) {
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("{}: float8_e4m3fn needs the scales of each output", weight_name(source.out, source.in)));
  }
  std::vector<float> row(static_cast<std::size_t>(source.in)), back(row.size());
  const std::int64_t groups = format.scales_of(source.in);
  ErrorSum error;
  for (std::int64_t output = first; output < last; ++output) {
    load_row(source, output, row);
    const Float8Row place = float8_row(format, to.data(), source.out, source.in, output);
    if (!pack_float8_row(row.data(), source.scales + output * groups, place, back.data())) {
      return Status(StatusCode::kInvalidArgument,
                    fmt::format("{}: output {}: float8_e4m3fn cannot represent a NaN or an infinity, or a scale is "
                                "negative or not finite",
                                weight_name(source.out, source.in), output));
    }
    error.add(row.data(), back.data(), source.in);
  }
  return error.result();
}

}  // namespace

Result<PackError> pack(const WeightSource& source, const PackedFormat& format, std::int64_t first, std::int64_t last,
                       std::span<std::byte> to) {
  ACCORD_RETURN_IF_ERROR(check(source, format, first, last, to.size()));
  if (format.type == WeightType::kFloat8) return pack_float8(source, format, first, last, to);
  const std::int64_t padded = padded_in(format, source.in);
  const std::size_t whole_panel = panel_bytes(format, padded, kPanelWidth);
  std::vector<float> row(static_cast<std::size_t>(padded)), back(row.size());
  ErrorSum error;
  for (std::int64_t panel = first / kPanelWidth; panel * kPanelWidth < last; ++panel) {
    std::byte* const data = to.data() + static_cast<std::size_t>(panel) * whole_panel;
    const std::int64_t width = panel_width(source.out, panel);
    for (std::int64_t output = 0; output < width; ++output) {
      const std::int64_t number = panel * kPanelWidth + output;
      if (number < source.out) {
        load_row(source, number, row);
      } else {
        std::fill(row.begin(), row.end(), 0.0F);
      }
      const Column column(format, data, width, output);
      const std::int64_t failed = pack_row(format, row, source.in, column, back, error);
      if (failed >= 0) {
        return Status(
            StatusCode::kInvalidArgument,
            fmt::format("{}: output {}, inputs from {} on: a NaN or an infinity cannot be quantized, or a scale "
                        "exceeds {}",
                        weight_name(source.out, source.in), number, failed, to_string(format.scale_type)));
      }
    }
  }
  return error.result();
}

Result<PackError> pack(const WeightSource& source, const PackedFormat& format, std::span<std::byte> to) {
  return pack(source, format, 0, source.out, to);
}

Status pack(const QuantizedSource& source, const PackedFormat& format, std::span<std::byte> to) {
  ACCORD_RETURN_IF_ERROR(check(format));
  const bool has_minima = format.minimum == Minimum::kPerGroup;
  if (!format.rounded() || source.out <= 0 || source.in <= 0 || (source.minima != nullptr) != has_minima ||
      to.size() < packed_bytes(format, source.out, source.in)) {
    return {
        StatusCode::kInvalidArgument,
        fmt::format("{} of codes into {} bytes: sizes must be positive, the format must be quantized, minima must be "
                    "given exactly if the format has them, and packed_bytes() must fit",
                    weight_name(source.out, source.in), to.size())};
  }
  if (format.type == WeightType::kFloat8) return pack_float8(source, format, to);
  const std::int64_t padded = padded_in(format, source.in);
  const std::int64_t groups = padded / format.group;
  std::memset(to.data(), 0, packed_bytes(format, source.out, source.in));
  std::uint8_t codes[kMaxGroup];
  for (std::int64_t output = 0; output < source.out; ++output) {
    const std::int64_t panel = output / kPanelWidth;
    const Column column(format, to.data() + static_cast<std::size_t>(panel) * panel_bytes(format, padded, kPanelWidth),
                        panel_width(source.out, panel), output % kPanelWidth);
    for (std::int64_t g = 0; g < groups; ++g) {
      const float scale = source.scales[output * groups + g];
      const float minimum = has_minima ? source.minima[output * groups + g] : 0.0F;
      const std::int64_t count = std::min<std::int64_t>(format.group, source.in - g * format.group);
      std::fill(std::begin(codes), std::end(codes), static_cast<std::uint8_t>(format.zero()));
      std::copy_n(source.codes + output * source.in + g * format.group, count, codes);
      const bool codes_fit = std::all_of(codes, codes + count, [&](int code) { return code < format.codes(); });
      if (!codes_fit || rounded_scale(scale, format.scale_type) != scale ||
          rounded_scale(minimum, format.scale_type) != minimum) {
        return {StatusCode::kInvalidArgument,
                fmt::format("{}: output {}, group {}: {}", weight_name(source.out, source.in), output, g,
                            codes_fit ? "the format's scale type cannot represent the scale or minimum exactly"
                                      : "a code is too large for the format")};
      }
      column.write_group(g, scale, minimum, codes);
    }
  }
  return {};
}

void unpack_output(const PackedMatrix& weights, std::int64_t output, float* to) {
  const PackedFormat& format = weights.format;
  if (format.type == WeightType::kFloat8) return unpack_float8_output(weights, output, to);
  const std::int64_t padded = padded_in(format, weights.in_unit);
  const std::int64_t in_unit = output % weights.out_unit, panel = in_unit / kPanelWidth;
  const std::byte* block = weights.data + output / weights.out_unit * weights.out_unit_stride;
  block += static_cast<std::size_t>(panel) * panel_bytes(format, padded, kPanelWidth);
  for (std::int64_t unit = 0; unit < weights.in_units; ++unit, block += weights.in_unit_stride) {
    const Column column(format, const_cast<std::byte*>(block), panel_width(weights.out_unit, panel),
                        in_unit % kPanelWidth);  // only read here
    float* const values = to + unit * weights.in_unit;
    const std::int64_t inputs = std::min(weights.in_unit, weights.in() - unit * weights.in_unit);
    if (!format.quantized()) column.read_floats(values, inputs);
    float group[kMaxGroup];
    for (std::int64_t first = 0; format.quantized() && first < inputs; first += format.group) {
      column.read_group(first / format.group, group);
      std::copy_n(group, std::min<std::int64_t>(format.group, inputs - first), values + first);
    }
  }
}

void unpack(const PackedMatrix& weights, std::int64_t first, std::int64_t last, DType dtype, std::span<std::byte> to) {
  std::vector<float> row(static_cast<std::size_t>(weights.in()));
  const auto row_bytes = static_cast<std::size_t>(weights.in()) * size_of(dtype);
  for (std::int64_t output = first; output < last; ++output) {
    unpack_output(weights, output, row.data());
    convert_between(DType::kFloat32, row.data(), dtype, to.data() + static_cast<std::size_t>(output) * row_bytes,
                    weights.in());
  }
}

void unpack(const PackedMatrix& weights, float* to) {
  for (std::int64_t output = 0; output < weights.out(); ++output)
    unpack_output(weights, output, to + output * weights.in());
}

}  // namespace accord::kernels
