#pragma once
// Kernels on channels-last images: [batch, height, width, channels].

#include <cstddef>
#include <cstdint>

#include "accord/buffer.hpp"

namespace accord::kernels {

struct Extent2 {
  std::int64_t height = 1, width = 1;
};

/// The shape of a convolution.
struct ConvolutionShape {
  std::int64_t batch = 0, channels = 0;
  Extent2 input, output, kernel, stride, padding, dilation;
};

/// Gathers the inputs of one output position. `position` is its flat index in [batch, height, width]. Writes channels
/// [first, first + count) of each position under the kernel to `patch`, as [kernel height, kernel width, count]
/// elements of `element` bytes. Positions outside the image are zeros. Cost: one copy of the data.
void gather_patch(const ConvolutionShape& shape, const std::byte* x, std::size_t element, std::int64_t position,
                  std::int64_t first, std::int64_t count, std::byte* patch);

/// y[b, i, j] = x[b, i', j'], the nearest position, as in PyTorch's upsample_nearest2d:
/// i' = floor(i * (x height / y height)), computed in float.
struct UpsampleCall {
  std::int64_t batch = 0;
  Extent2 input, output;
  std::size_t position_bytes = 0;  ///< bytes per position, all channels
  const std::byte* x = nullptr;
  std::byte* y = nullptr;
};
/// Computes rows [first, last) of the batch * output height rows.
void upsample_nearest(const UpsampleCall& call, std::int64_t first, std::int64_t last);

/// Group norm: y = (x - mean) / sqrt(variance + eps) * weight + bias. The mean and the biased variance are over all
/// positions of the channels of a group. Sums over 64 positions are accumulated in fp32, and their totals in double.
struct GroupNormCall {
  std::int64_t batch = 0, positions = 0, channels = 0, groups = 0;
  const float* x = nullptr;       ///< [batch, positions, channels]
  const float* weight = nullptr;  ///< [channels], or null
  const float* bias = nullptr;    ///< [channels], or null
  float eps = 1e-5F;
  float* y = nullptr;  ///< same shape as x; may be x
};
/// Computes groups [first, last) of the batch * groups groups. Cost: three passes over their channels.
void group_norm(const GroupNormCall& call, std::int64_t first, std::int64_t last);

}  // namespace accord::kernels
