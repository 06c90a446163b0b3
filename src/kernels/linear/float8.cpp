// The functions process one output at a time. Each block along `in` stores its own scales: one per output, which are
// equal in all blocks of a package that accord wrote, or one per group.

#include "kernels/linear/float8.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "device/numbers.hpp"

namespace accord::kernels {

namespace {

constexpr std::uint8_t kMagnitude = 0x7F;  // all its bits set: NaN
constexpr auto kScaleBytes = static_cast<std::int64_t>(sizeof(float));

const std::array<float, 256>& numbers() {
  static const std::array<float, 256> all = [] {
    std::array<float, 256> each{};
    for (std::size_t bits = 0; bits < each.size(); ++bits)
      each[bits] = device::from_float8_e4m3fn(static_cast<std::uint8_t>(bits));
    return each;
  }();
  return all;
}

bool is_scale(float scale) { return std::isfinite(scale) && scale >= 0.0F; }

// Calls each(row, first input, inputs) for every block that holds a part of output `output` of the whole weight.
template <typename Each>
void for_each_block(const PackedMatrix& weights, std::int64_t output, const Each& each) {
  std::byte* block = const_cast<std::byte*>(weights.data);  // read only
  block += output / weights.out_unit * weights.out_unit_stride;
  for (std::int64_t unit = 0; unit < weights.in_units; ++unit, block += weights.in_unit_stride) {
    const std::int64_t first = unit * weights.in_unit;
    each(float8_row(weights.format, block, weights.out_unit, weights.in_unit, output % weights.out_unit), first,
         std::min(weights.in_unit, weights.in() - first));
  }
}

}  // namespace

float Float8Row::scale(std::int64_t input) const {
  float scale = 0.0F;
  std::memcpy(&scale, scales + (group == 0 ? 0 : input / group) * kScaleBytes, sizeof(scale));
  return scale;
}

Float8Row float8_row(const PackedFormat& format, std::byte* block, std::int64_t out, std::int64_t in,
                     std::int64_t output) {
  const std::int64_t groups = format.scales_of(in);
  auto* const elements = reinterpret_cast<std::uint8_t*>(block + out * groups * kScaleBytes + output * in);
  return {block + output * groups * kScaleBytes, elements, in, format.group, groups};
}

bool pack_float8_row(const float* row, const float* scales, const Float8Row& to, float* back) {
  if (!std::all_of(scales, scales + to.groups, is_scale)) return false;
  std::memcpy(to.scales, scales, static_cast<std::size_t>(to.groups * kScaleBytes));
  for (std::int64_t i = 0; i < to.in; ++i) {
    if (!std::isfinite(row[i])) return false;
    const float scale = to.scale(i);
    to.elements[i] = scale == 0.0F ? std::uint8_t{0} : device::to_float8_e4m3fn(row[i] / scale);
    back[i] = scale * device::from_float8_e4m3fn(to.elements[i]);
  }
  return true;
}

Status pack_float8(const QuantizedSource& source, const PackedFormat& format, std::span<std::byte> to) {
  const std::int64_t groups = format.scales_of(source.in);
  for (std::int64_t output = 0; output < source.out; ++output) {
    const std::uint8_t* const codes = source.codes + output * source.in;
    const float* const scales = source.scales + output * groups;
    const bool numbers =
        std::none_of(codes, codes + source.in, [](std::uint8_t code) { return (code & kMagnitude) == kMagnitude; });
    if (!numbers || !std::all_of(scales, scales + groups, is_scale)) {
      return {StatusCode::kInvalidArgument,
              fmt::format("packed weights [{}, {}]: output {}: {}", source.out, source.in, output,
                          numbers ? "a scale is negative or not finite" : "an element is NaN")};
    }
    const Float8Row row = float8_row(format, to.data(), source.out, source.in, output);
    std::memcpy(row.scales, scales, static_cast<std::size_t>(groups * kScaleBytes));
    std::copy_n(codes, source.in, row.elements);
  }
  return {};
}

void unpack_float8_output(const PackedMatrix& weights, std::int64_t output, float* to) {
  for_each_block(weights, output, [&](const Float8Row& row, std::int64_t first, std::int64_t inputs) {
    const std::int64_t inputs_per_scale = row.group == 0 ? inputs : row.group;
    for (std::int64_t begin = 0; begin < inputs; begin += inputs_per_scale) {
      const float scale = row.scale(begin);
      for (std::int64_t i = begin; i < std::min(begin + inputs_per_scale, inputs); ++i)
        to[first + i] = scale * numbers()[row.elements[i]];
    }
  });
}

bool copy_float8(const PackedMatrix& weights, std::uint8_t* elements, float* scales) {
  const std::int64_t groups = weights.format.scales_of(weights.in());
  bool equal = true;
  for (std::int64_t output = 0; output < weights.out(); ++output) {
    float* const row_scales = scales + output * groups;
    for_each_block(weights, output, [&](const Float8Row& row, std::int64_t first, std::int64_t inputs) {
      const std::int64_t group = row.group == 0 ? 0 : first / row.group;
      if (row.group != 0 || first == 0)
        std::memcpy(row_scales + group, row.scales,
                    static_cast<std::size_t>(weights.format.scales_of(inputs) * kScaleBytes));
      equal = equal && row_scales[group] == row.scale(0);
      std::copy_n(row.elements, inputs, elements + output * weights.in() + first);
    });
  }
  return equal;
}

}  // namespace accord::kernels
