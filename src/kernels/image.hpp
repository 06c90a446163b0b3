#pragma once
// Kernels on images whose channels lie last in memory: [batch, height, width, channels].

#include <cstddef>
#include <cstdint>

#include "accord/buffer.hpp"

namespace accord::kernels {

struct Extent2 {
  std::int64_t height = 1, width = 1;
};

/// What a convolution sees.
struct ConvolutionShape {
  std::int64_t batch = 0, channels = 0;
  Extent2 input, output, kernel, stride, padding, dilation;
};

/// The inputs of one place of the output ([batch, height, width], counted through): channels [first, first + count) of each place
/// under the kernel, [kernel height, kernel width, count] elements of `element` bytes; zeros outside of the image. Cost: one
/// copy of them.
void gather_patch(const ConvolutionShape& shape, const std::byte* x, std::size_t element, std::int64_t place,
                  std::int64_t first, std::int64_t count, std::byte* patch);

/// y[b, i, j] = x[b, i', j'], the nearest place, as PyTorch's upsample_nearest2d: i' = floor(i * (x height / y height)) in float.
struct UpsampleCall {
  std::int64_t batch = 0;
  Extent2 input, output;
  std::size_t place_bytes = 0;  ///< of all channels of a place
  const std::byte* x = nullptr;
  std::byte* y = nullptr;
};
/// Rows [first, last) of batch * output height.
void upsample_nearest(const UpsampleCall& call, std::int64_t first, std::int64_t last);

/// Group norm: y = (x - mean) / sqrt(variance + eps) * weight + bias, mean and biased variance over all places of the channels of
/// a group. Sums of 64 places are fp32, those of all double.
struct GroupNormCall {
  std::int64_t batch = 0, places = 0, channels = 0, groups = 0;
  const float* x = nullptr;       ///< [batch, places, channels]
  const float* weight = nullptr;  ///< [channels], or none
  const float* bias = nullptr;    ///< [channels], or none
  float eps = 1e-5F;
  float* y = nullptr;  ///< as x, may be x
};
/// Groups [first, last) of batch * groups. Cost: three passes over their channels.
void group_norm(const GroupNormCall& call, std::int64_t first, std::int64_t last);

}  // namespace accord::kernels
