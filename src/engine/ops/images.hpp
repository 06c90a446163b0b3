#pragma once
// Images as ops read and write them: [batch, channels, height, width], or [batch, channels, length], with the
// channels last in memory.

#include "engine/program/preparation.hpp"
#include "kernels/image.hpp"

namespace accord::engine {

/// Returns [batch, channels, length] as an image of height 1, and an image unchanged. Fails with kUnsupported for
/// anything else.
Result<Tensor> as_image(const Preparation& op, Tensor tensor);

/// Returns `image`, or a copy of it, with its channels last. REQUIRES: four dimensions.
Result<Tensor> channels_last(Preparation& op, const Tensor& image);

/// Creates the first output, of three or four dimensions, with its channels last.
Result<Tensor> make_channels_last(Preparation& op, const Sizes& sizes);

/// Returns the shape that the arguments of a convolution over `image` describe. Fails with kCorrupt if they do not
/// fit, or if `weight` [out, in, ..] does not fit them with this number of groups. `length`: the input has three
/// dimensions.
Result<kernels::ConvolutionShape> convolution_shape(const Preparation& op, const Tensor& image, const Tensor& weight,
                                                    std::int64_t groups, bool length);

/// Returns whether a convolution multiplies the places of its input as they are in memory.
bool is_plain(const kernels::ConvolutionShape& shape);

}  // namespace accord::engine
