// Channels are adjacent in memory, so the work on each channel is a plain loop over contiguous memory that the
// compiler vectorizes.
#include "kernels/image.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace accord::kernels {

namespace {

constexpr std::int64_t kPositions = 64;  // positions summed in fp32
constexpr std::int64_t kChannels = 64;   // channels summed side by side

std::int64_t nearest(std::int64_t at, std::int64_t input, std::int64_t output) {
  const float scale = static_cast<float>(input) / static_cast<float>(output);
  return std::min(static_cast<std::int64_t>(std::floor(static_cast<float>(at) * scale)), input - 1);
}

// Sums term(x) over `count` <= kChannels channels of all positions. Positions are `stride` floats apart.
template <typename Term>
double sum_of(const float* x, std::int64_t positions, std::int64_t stride, std::int64_t count, const Term& term) {
  double sum = 0.0;
  for (std::int64_t first = 0; first < positions; first += kPositions) {
    float sums[kChannels] = {};
    for (std::int64_t position = first; position < std::min(first + kPositions, positions); ++position) {
      for (std::int64_t c = 0; c < count; ++c) sums[c] += term(x[position * stride + c]);
    }
    for (std::int64_t c = 0; c < count; ++c) sum += static_cast<double>(sums[c]);
  }
  return sum;
}

template <typename Term>
double sum_of_group(const float* x, std::int64_t positions, std::int64_t stride, std::int64_t width, const Term& term) {
  double sum = 0.0;
  for (std::int64_t c = 0; c < width; c += kChannels) {
    sum += sum_of(x + c, positions, stride, std::min(kChannels, width - c), term);
  }
  return sum;
}

}  // namespace

void gather_patch(const ConvolutionShape& shape, const std::byte* x, std::size_t element, std::int64_t position,
                  std::int64_t first, std::int64_t count, std::byte* patch) {
  const std::int64_t row = position / shape.output.width;
  const std::int64_t batch = row / shape.output.height;
  const std::int64_t top = row % shape.output.height * shape.stride.height - shape.padding.height;
  const std::int64_t left = position % shape.output.width * shape.stride.width - shape.padding.width;
  const std::size_t bytes = static_cast<std::size_t>(count) * element;
  for (std::int64_t i = 0; i < shape.kernel.height; ++i) {
    const std::int64_t y = top + i * shape.dilation.height;
    for (std::int64_t j = 0; j < shape.kernel.width; ++j, patch += bytes) {
      const std::int64_t at = left + j * shape.dilation.width;
      if (y < 0 || y >= shape.input.height || at < 0 || at >= shape.input.width) {
        std::memset(patch, 0, bytes);
        continue;
      }
      const std::int64_t source = (batch * shape.input.height + y) * shape.input.width + at;
      std::memcpy(patch, x + static_cast<std::size_t>(source * shape.channels + first) * element, bytes);
    }
  }
}

void upsample_nearest(const UpsampleCall& call, std::int64_t first, std::int64_t last) {
  const std::int64_t in_row = call.input.width * static_cast<std::int64_t>(call.position_bytes);
  const std::int64_t out_row = call.output.width * static_cast<std::int64_t>(call.position_bytes);
  for (std::int64_t row = first; row < last; ++row) {
    const std::int64_t batch = row / call.output.height;
    const std::int64_t y = nearest(row % call.output.height, call.input.height, call.output.height);
    const std::byte* const from = call.x + (batch * call.input.height + y) * in_row;
    std::byte* to = call.y + row * out_row;
    for (std::int64_t j = 0; j < call.output.width; ++j, to += call.position_bytes) {
      const auto at = static_cast<std::size_t>(nearest(j, call.input.width, call.output.width));
      std::memcpy(to, from + at * call.position_bytes, call.position_bytes);
    }
  }
}

void group_norm(const GroupNormCall& call, std::int64_t first, std::int64_t last) {
  const std::int64_t width = call.channels / call.groups;
  const double elements = static_cast<double>(width * call.positions);
  for (std::int64_t index = first; index < last; ++index) {
    const std::int64_t channel = index % call.groups * width;
    const std::int64_t begin = index / call.groups * call.positions * call.channels + channel;
    const float* const x = call.x + begin;
    float* const y = call.y + begin;
    const auto mean = static_cast<float>(
        sum_of_group(x, call.positions, call.channels, width, [](float value) { return value; }) / elements);
    const double squares = sum_of_group(x, call.positions, call.channels, width,
                                        [mean](float value) { return (value - mean) * (value - mean); });
    const auto inverse = static_cast<float>(1.0 / std::sqrt(squares / elements + static_cast<double>(call.eps)));
    for (std::int64_t c = 0; c < width; c += kChannels) {
      const std::int64_t count = std::min(kChannels, width - c);
      float scale[kChannels], shift[kChannels];
      for (std::int64_t i = 0; i < count; ++i) {
        scale[i] = inverse * (call.weight == nullptr ? 1.0F : call.weight[channel + c + i]);
        shift[i] = (call.bias == nullptr ? 0.0F : call.bias[channel + c + i]) - mean * scale[i];
      }
      for (std::int64_t position = 0; position < call.positions; ++position) {
        const std::int64_t at = position * call.channels + c;
        for (std::int64_t i = 0; i < count; ++i) y[at + i] = x[at + i] * scale[i] + shift[i];
      }
    }
  }
}

}  // namespace accord::kernels
