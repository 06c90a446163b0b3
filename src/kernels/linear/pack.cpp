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

struct Scales {
  float scale = 0.0F, minimum = 0.0F;
};

bool by_magnitude(float a, float b) { return std::fabs(a) < std::fabs(b); }

// Returns the scale and minimum that suit the values of a group best.
Scales ideal_scales(const PackedFormat& format, const float* values, std::int64_t count) {
  const auto [low, high] = std::minmax_element(values, values + count);
  if (format.minimum == Minimum::kPerGroup) {
    const auto steps = static_cast<float>(format.codes() - 1);
    return {*high / steps - *low / steps, *low};
  }
  const float extreme = std::fabs(*low) > std::fabs(*high) ? *low : *high;
  if (format.type == WeightType::kTable4) {
    const float most = std::fabs(*std::max_element(format.table.begin(), format.table.end(), by_magnitude));
    return {most == 0.0F ? 0.0F : std::fabs(extreme) / most, 0.0F};
  }
  if (format.type == WeightType::kInt8) return {std::fabs(extreme) / 127.0F, 0.0F};
  return {extreme / -static_cast<float>(format.zero()), 0.0F};
}

// Returns the code of the number in the table that is nearest to `value`.
std::uint8_t nearest_code(const PackedFormat& format, double value) {
  const auto distance = [value](float number) { return std::fabs(static_cast<double>(number) - value); };
  const auto nearest = std::min_element(format.table.begin(), format.table.end(),
                                        [&](float a, float b) { return distance(a) < distance(b); });
  return static_cast<std::uint8_t>(nearest - format.table.begin());
}

// Quantizes `count` values; the rest of the group gets the code of zero.
void quantize(const PackedFormat& format, const float* values, std::int64_t count, const Scales& scales,
              std::uint8_t* codes) {
  const double inverse = scales.scale == 0.0F ? 0.0 : 1.0 / static_cast<double>(scales.scale);
  const double offset = static_cast<double>(scales.minimum);
  if (format.type == WeightType::kTable4) {
    std::fill(codes + count, codes + format.group, nearest_code(format, 0.0));
    for (std::int64_t i = 0; i < count; ++i) codes[i] = nearest_code(format, static_cast<double>(values[i]) * inverse);
    return;
  }
  const double zero = format.zero(), largest = format.codes() - 1;
  std::fill(codes, codes + format.group, static_cast<std::uint8_t>(format.zero()));
  for (std::int64_t i = 0; i < count; ++i) {
    const double code = (static_cast<double>(values[i]) - offset) * inverse + zero;
    codes[i] = static_cast<std::uint8_t>(std::lround(std::min(std::max(code, 0.0), largest)));
  }
}

// Packs the groups of inputs [first, last), of which the `row` has `in`: a single one, or a super-group. Returns false
// if a value is not finite or a scale exceeds its type.
bool pack_groups(const PackedFormat& format, const std::vector<float>& row, std::int64_t in, std::int64_t first,
                 std::int64_t last, const Column& column) {
  Scales ideal[kSuperGroup / kMinGroup], most, unit{1.0F, 1.0F};
  const auto count_of = [&](std::int64_t begin) { return std::min<std::int64_t>(format.group, in - begin); };
  for (std::int64_t begin = first, i = 0; begin < last; begin += format.group, ++i) {
    const float* const values = row.data() + begin;
    const auto is_finite = [](float value) { return std::isfinite(value); };
    if (!std::all_of(values, values + count_of(begin), is_finite)) return false;
    ideal[i] = ideal_scales(format, values, count_of(begin));
    most = {std::max(most.scale, std::fabs(ideal[i].scale)), std::max(most.minimum, std::fabs(ideal[i].minimum))};
  }
  if (format.has_super_groups()) {
    unit = {rounded_scale(most.scale / 127.0F, DType::kFloat16), rounded_scale(most.minimum / 127.0F, DType::kFloat16)};
    if (!std::isfinite(unit.scale) || !std::isfinite(unit.minimum)) return false;
    column.write_super_group(first / kSuperGroup, unit.scale, unit.minimum);
  }
  const auto rounded = [&](float value, float step) {
    return step == 0.0F ? 0.0F : rounded_scale(value / step, format.scale_type);
  };
  std::uint8_t codes[kMaxGroup];
  for (std::int64_t begin = first, i = 0; begin < last; begin += format.group, ++i) {
    const Scales scales{rounded(ideal[i].scale, unit.scale), rounded(ideal[i].minimum, unit.minimum)};
    if (!std::isfinite(scales.scale) || !std::isfinite(scales.minimum)) return false;
    quantize(format, row.data() + begin, count_of(begin), {unit.scale * scales.scale, unit.minimum * scales.minimum},
             codes);
    column.write_group(begin / format.group, scales.scale, scales.minimum, codes);
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

// Packs one output of a weight. `row` is padded with zeros after its inputs. Returns the first input of groups that
// cannot be quantized, or -1 on success.
std::int64_t pack_row(const PackedFormat& format, const std::vector<float>& row, std::int64_t in, const Column& column,
                      std::vector<float>& back, ErrorSum& error) {
  const std::int64_t padded = static_cast<std::int64_t>(row.size());
  if (!format.quantized()) {
    column.write_floats(row.data(), padded);
    column.read_floats(back.data(), padded);
  }
  const std::int64_t together = format.has_super_groups() ? kSuperGroup : format.group;
  for (std::int64_t first = 0; format.quantized() && first < padded; first += together) {
    const std::int64_t last = std::min(first + together, padded);
    if (!pack_groups(format, row, in, first, last, column)) return first;
    for (std::int64_t begin = first; begin < last; begin += format.group) {
      column.read_group(begin / format.group, back.data() + begin);
    }
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

// Packs one output. Returns why its scales, minima or codes do not fit the format, or null on success.
const char* pack_codes(const QuantizedSource& source, const PackedFormat& format, std::int64_t output,
                       const Column& column) {
  const auto fits = [](float value, DType type) { return rounded_scale(value, type) == value; };
  constexpr const char* kInexact = "the format's scale type cannot represent the scale or minimum exactly";
  const auto number = [&](const float* values, std::int64_t at) { return values == nullptr ? 0.0F : values[at]; };
  const std::int64_t supers = format.super_groups_of(source.in), groups = format.scales_of(source.in);
  for (std::int64_t i = 0; i < supers; ++i) {
    const float scale = number(source.super_scales, output * supers + i);
    const float minimum = number(source.super_minima, output * supers + i);
    if (!fits(scale, DType::kFloat16) || !fits(minimum, DType::kFloat16)) return kInexact;
    column.write_super_group(i, scale, minimum);
  }
  std::uint8_t codes[kMaxGroup];
  for (std::int64_t g = 0; g < groups; ++g) {
    const float scale = source.scales[output * groups + g], minimum = number(source.minima, output * groups + g);
    const std::int64_t count = std::min<std::int64_t>(format.group, source.in - g * format.group);
    const bool has_table = format.type == WeightType::kTable4;  // padding inputs are multiplied by rows of zeros
    std::fill(std::begin(codes), std::end(codes), static_cast<std::uint8_t>(has_table ? 0 : format.zero()));
    std::copy_n(source.codes + output * source.in + g * format.group, count, codes);
    if (!std::all_of(codes, codes + count, [&](int code) { return code < format.codes(); })) {
      return "a code is too large for the format";
    }
    if (!fits(scale, format.scale_type) || !fits(minimum, format.scale_type)) return kInexact;
    column.write_group(g, scale, minimum, codes);
  }
  return nullptr;
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
      const Column column(format, data, padded, width, output);
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
  const bool has_minima = format.minimum == Minimum::kPerGroup, has_supers = format.has_super_groups();
  if (!format.rounded() || source.out <= 0 || source.in <= 0 || (source.minima != nullptr) != has_minima ||
      (source.super_scales != nullptr) != has_supers ||
      (source.super_minima != nullptr) != (has_supers && has_minima) ||
      to.size() < packed_bytes(format, source.out, source.in)) {
    return {StatusCode::kInvalidArgument,
            fmt::format("{} of codes into {} bytes: sizes must be positive, the format must be quantized, minima and "
                        "scales of super-groups must be given exactly if the format has them, and packed_bytes() must "
                        "fit",
                        weight_name(source.out, source.in), to.size())};
  }
  if (format.type == WeightType::kFloat8) return pack_float8(source, format, to);
  const std::int64_t padded = padded_in(format, source.in);
  std::memset(to.data(), 0, packed_bytes(format, source.out, source.in));
  for (std::int64_t output = 0; output < source.out; ++output) {
    const std::int64_t panel = output / kPanelWidth;
    const Column column(format, to.data() + static_cast<std::size_t>(panel) * panel_bytes(format, padded, kPanelWidth),
                        padded, panel_width(source.out, panel), output % kPanelWidth);
    if (const char* const failed = pack_codes(source, format, output, column)) {
      return {StatusCode::kInvalidArgument,
              fmt::format("{}: output {}: {}", weight_name(source.out, source.in), output, failed)};
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
    const Column column(format, const_cast<std::byte*>(block), padded, panel_width(weights.out_unit, panel),
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
