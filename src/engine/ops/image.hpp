#pragma once
// Calls for images: [batch, channels, height, width], or [batch, channels, length], with the channels last in memory.

#include <optional>

#include "engine/program/packed_stack.hpp"
#include "engine/program/preparation.hpp"
#include "kernels/image.hpp"

namespace accord::engine {

/// y = convolution of x with weight, + bias.
struct ConvolutionCall {
  kernels::ConvolutionShape shape;
  std::int64_t groups = 1;
  Tensor x;                             ///< an image
  Tensor weight;                        ///< [outputs, channels / groups, ..] of x's dtype, in any layout
  const PackedStack* packed = nullptr;  ///< the weight, if the CPU has packed it
  std::optional<Tensor> bias;           ///< [outputs], in any layout
  Tensor y;                             ///< an image or a length
};

/// kernels::group_norm of x into y.
struct GroupNormCall {
  std::int64_t groups = 1;
  float eps = 0.0F;
  Tensor x;                            ///< an image
  std::optional<Tensor> weight, bias;  ///< [channels] of any float dtype, without gaps
  Tensor y;                            ///< an image or a length, of x's dtype
};

/// kernels::upsample_nearest of x into y: images of one dtype.
struct UpsampleCall {
  Tensor x, y;
};

/// Returns [batch, channels, length] as an image of height 1, and an image unchanged. Fails with kUnsupported for
/// anything else.
Result<Tensor> as_image(const Preparation& op, Tensor tensor);

/// Returns whether a convolution multiplies the places of its input as they are in memory.
bool is_plain(const kernels::ConvolutionShape& shape);

}  // namespace accord::engine
