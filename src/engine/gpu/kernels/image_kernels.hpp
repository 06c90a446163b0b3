#pragma once
// Kernels for images whose channels are last in memory, [batch, height, width, channels]: the device's versions of
// kernels/image.hpp.

#include <cmath>

#include "engine/gpu/kernels/operands.hpp"
#include "engine/gpu/kernels/words.hpp"
#include "kernels/image.hpp"

namespace accord::engine {

/// The part of the input that a convolution reads for one place of its output.
struct Window {
  std::int64_t batch = 0, top = 0, left = 0;

  ACCORD_ON_DEVICE static Window of(const kernels::ConvolutionShape& shape, std::int64_t place) {
    const std::int64_t column = take_last(place, shape.output.width), row = take_last(place, shape.output.height);
    return {place, row * shape.stride.height - shape.padding.height, column * shape.stride.width - shape.padding.width};
  }
  /// Returns the place of the input under (i, j) of the kernel, or -1 if it is outside of the image.
  ACCORD_ON_DEVICE std::int64_t place(const kernels::ConvolutionShape& shape, std::int64_t i, std::int64_t j) const {
    const std::int64_t row = top + i * shape.dilation.height, column = left + j * shape.dilation.width;
    if (row < 0 || row >= shape.input.height || column < 0 || column >= shape.input.width) return -1;
    return (batch * shape.input.height + row) * shape.input.width + column;
  }
};

/// kernels::gather_patch for `places` places from `first_place` on, each [kernel height, kernel width, channels].
/// Each thread moves a unit of type T: as many bytes as channels and addresses are multiples of.
template <typename T>
struct GatherPatches {
  static constexpr const char* kName = sizeof(T) == 2   ? "engine_gather_patches_2"
                                       : sizeof(T) == 4 ? "engine_gather_patches_4"
                                                        : "engine_gather_patches_16";
  static constexpr int kThreads = 256;
  kernels::ConvolutionShape shape;  ///< channels are those of x, in units
  std::int64_t first_place = 0, places = 0;
  std::int64_t first = 0, channels = 0;  ///< in units
  const T* x = nullptr;
  T* patches = nullptr;

  ACCORD_ON_DEVICE std::int64_t count() const { return places * shape.kernel.height * shape.kernel.width * channels; }

  template <typename Block>
  ACCORD_ON_DEVICE void operator()(Block& block) const {
    const auto all = static_cast<std::size_t>(count());
    for (std::size_t to = block.first(); to < all; to += block.stride()) {
      auto place = static_cast<std::int64_t>(to);
      const std::int64_t channel = take_last(place, channels);
      const std::int64_t j = take_last(place, shape.kernel.width), i = take_last(place, shape.kernel.height);
      const std::int64_t from = Window::of(shape, first_place + place).place(shape, i, j);
      patches[to] = from < 0 ? T{} : x[from * shape.channels + first + channel];
    }
  }
};

/// A convolution whose groups have few outputs. Each thread computes one element of y; neighbouring threads compute
/// neighbouring channels.
struct DirectConvolution {
  static constexpr const char* kName = "engine_direct_convolution";
  static constexpr int kThreads = 256;
  kernels::ConvolutionShape shape;
  DType dtype = DType::kFloat32, y_dtype = DType::kFloat32;  ///< of x and weight; of y and bias
  std::int64_t groups = 1, outputs = 0;
  const void* x = nullptr;
  const void* weight = nullptr;  ///< [outputs, kernel height, kernel width, channels / groups]
  const void* bias = nullptr;    ///< [outputs]; null: none
  void* y = nullptr;

  template <typename Block>
  ACCORD_ON_DEVICE void operator()(Block& block) const {
    const std::int64_t each = shape.channels / groups;
    const auto all = static_cast<std::size_t>(shape.batch * shape.output.height * shape.output.width * outputs);
    for (std::size_t to = block.first(); to < all; to += block.stride()) {
      auto place = static_cast<std::int64_t>(to);
      const std::int64_t output = take_last(place, outputs);
      const std::int64_t first = output / (outputs / groups) * each;
      const Window window = Window::of(shape, place);
      std::int64_t with = output * shape.kernel.height * shape.kernel.width * each;
      float sum = bias == nullptr ? 0.0F : device::load_float(bias, y_dtype, output);
      for (std::int64_t i = 0; i < shape.kernel.height; ++i) {
        for (std::int64_t j = 0; j < shape.kernel.width; ++j, with += each) {
          const std::int64_t from = window.place(shape, i, j);
          if (from < 0) continue;
          for (std::int64_t c = 0; c < each; ++c) {
            sum = multiply_add(device::load_float(x, dtype, from * shape.channels + first + c),
                               device::load_float(weight, dtype, with + c), sum);
          }
        }
      }
      device::store_float(y, y_dtype, static_cast<std::int64_t>(to), sum);
    }
  }
};

/// Floats of any dtype.
struct AnyFloats {
  const void* data = nullptr;
  DType dtype = DType::kFloat32;
  ACCORD_ON_DEVICE float at(std::int64_t i) const { return device::load_float(data, dtype, i); }
};

/// kernels::GroupNormCall. Each block computes one group of one image. Cost: three passes over the group.
struct GroupNorm {
  static constexpr const char* kName = "engine_group_norm";
  static constexpr int kThreads = 512;
  std::int64_t batch = 0, places = 0, channels = 0, groups = 0;
  AnyFloats x, weight, bias;  ///< weight and bias: null if there is none
  float eps = 0.0F;
  void* y = nullptr;  ///< of x's dtype

  template <typename Block>
  ACCORD_ON_DEVICE void operator()(Block& block) const {
    const std::int64_t width = channels / groups, count = width * places;
    for (std::int64_t i = block.block(); i < batch * groups; i += block.blocks()) {
      const std::int64_t first = i / groups * places * channels + i % groups * width;
      const auto sum = [&](auto term) {
        float mine = 0.0F;
        for (std::int64_t at = block.thread(); at < count; at += block.threads()) {
          std::int64_t place = at;
          const std::int64_t channel = take_last(place, width);
          mine += term(x.at(first + place * channels + channel));
        }
        return block.block_sum(static_cast<double>(mine)) / static_cast<double>(count);
      };
      const auto mean = static_cast<float>(sum([](float value) { return value; }));
      const double variance = sum([&](float value) { return (value - mean) * (value - mean); });
      const auto inverse = static_cast<float>(1.0 / sqrt(variance + static_cast<double>(eps)));
      for (std::int64_t at = block.thread(); at < count; at += block.threads()) {
        std::int64_t place = at;
        const std::int64_t within = take_last(place, width), channel = i % groups * width + within;
        const std::int64_t to = first + place * channels + within;
        float value = (x.at(to) - mean) * inverse;
        if (weight.data != nullptr) value *= weight.at(channel);
        if (bias.data != nullptr) value += bias.at(channel);
        device::store_float(y, x.dtype, to, value);
      }
    }
  }
};

/// kernels::UpsampleCall. Each thread moves one unit of a place, as in GatherPatches.
template <typename T>
struct UpsampleNearest {
  static constexpr const char* kName = sizeof(T) == 1   ? "engine_upsample_1"
                                       : sizeof(T) == 2 ? "engine_upsample_2"
                                       : sizeof(T) == 4 ? "engine_upsample_4"
                                                        : "engine_upsample_16";
  static constexpr int kThreads = 256;
  std::int64_t batch = 0, channels = 0;  ///< in units
  kernels::Extent2 input, output;
  float row_scale = 1.0F, column_scale = 1.0F;  ///< input / output
  const T* x = nullptr;
  T* y = nullptr;

  ACCORD_ON_DEVICE std::int64_t count() const { return batch * output.height * output.width * channels; }

  template <typename Block>
  ACCORD_ON_DEVICE void operator()(Block& block) const {
    const auto all = static_cast<std::size_t>(count());
    for (std::size_t to = block.first(); to < all; to += block.stride()) {
      auto image = static_cast<std::int64_t>(to);
      const std::int64_t channel = take_last(image, channels);
      const std::int64_t column = nearest(take_last(image, output.width), column_scale, input.width);
      const std::int64_t row = nearest(take_last(image, output.height), row_scale, input.height);
      y[to] = x[((image * input.height + row) * input.width + column) * channels + channel];
    }
  }

 private:
  ACCORD_ON_DEVICE static std::int64_t nearest(std::int64_t at, float scale, std::int64_t size) {
    const auto found = static_cast<std::int64_t>(floorf(static_cast<float>(at) * scale));
    return found < size ? found : size - 1;
  }
};

}  // namespace accord::engine
