// Output by output; several blocks along `in` have a scale each, which are equal where the package was written by accord.

#include "kernels/linear/float8.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "device/numbers.hpp"

namespace accord::kernels {

namespace {

constexpr std::uint8_t kMagnitude = 0x7F;  // all its bits set: no number

float scale_of(const Float8Row& row) {
  float scale = 0.0F;
  std::memcpy(&scale, row.scale, sizeof(scale));
  return scale;
}

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

// Calls each(row, first input, inputs) for the blocks that output `output` of the whole weight has a part in.
template <typename Each>
void for_each_block(const PackedMatrix& weights, std::int64_t output, const Each& each) {
  std::byte* block = const_cast<std::byte*>(weights.data);  // only read
  block += output / weights.out_unit * weights.out_unit_stride;
  for (std::int64_t unit = 0; unit < weights.in_units; ++unit, block += weights.in_unit_stride) {
    const std::int64_t first = unit * weights.in_unit;
    each(float8_row(block, weights.out_unit, weights.in_unit, output % weights.out_unit), first,
         std::min(weights.in_unit, weights.in() - first));
  }
}

}  // namespace

Float8Row float8_row(std::byte* block, std::int64_t out, std::int64_t in, std::int64_t output) {
  constexpr auto kScale = static_cast<std::int64_t>(sizeof(float));
  return {block + output * kScale, reinterpret_cast<std::uint8_t*>(block + out * kScale + output * in)};
}

bool pack_float8_row(const float* row, std::int64_t in, float scale, const Float8Row& to, float* back) {
  if (!is_scale(scale)) return false;
  std::memcpy(to.scale, &scale, sizeof(scale));
  for (std::int64_t i = 0; i < in; ++i) {
    if (!std::isfinite(row[i])) return false;
    to.elements[i] = scale == 0.0F ? std::uint8_t{0} : device::to_float8_e4m3fn(row[i] / scale);
    back[i] = scale * device::from_float8_e4m3fn(to.elements[i]);
  }
  return true;
}

Status pack_float8(const QuantizedSource& source, std::span<std::byte> to) {
  for (std::int64_t output = 0; output < source.out; ++output) {
    const std::uint8_t* const codes = source.codes + output * source.in;
    const bool numbers =
        std::none_of(codes, codes + source.in, [](std::uint8_t code) { return (code & kMagnitude) == kMagnitude; });
    const float scale = source.scales[output];
    if (!numbers || !is_scale(scale)) {
      return {StatusCode::kInvalidArgument,
              fmt::format("packed weights [{}, {}]: output {}: {}", source.out, source.in, output,
                          numbers ? "its scale is below zero or not finite" : "an element is NaN")};
    }
    const Float8Row row = float8_row(to.data(), source.out, source.in, output);
    std::memcpy(row.scale, &scale, sizeof(scale));
    std::copy_n(codes, source.in, row.elements);
  }
  return {};
}

void unpack_float8_output(const PackedMatrix& weights, std::int64_t output, float* to) {
  for_each_block(weights, output, [&](const Float8Row& row, std::int64_t first, std::int64_t inputs) {
    const float scale = scale_of(row);
    for (std::int64_t i = 0; i < inputs; ++i) to[first + i] = scale * numbers()[row.elements[i]];
  });
}

bool copy_float8(const PackedMatrix& weights, std::uint8_t* elements, float* scales) {
  bool equal = true;
  for (std::int64_t output = 0; output < weights.out(); ++output) {
    for_each_block(weights, output, [&](const Float8Row& row, std::int64_t first, std::int64_t inputs) {
      if (first == 0) scales[output] = scale_of(row);
      equal = equal && scales[output] == scale_of(row);
      std::copy_n(row.elements, inputs, elements + output * weights.in() + first);
    });
  }
  return equal;
}

}  // namespace accord::kernels
