#pragma once
// Images as ops take and make them: [batch, channels, height, width], or [batch, channels, length], with their channels last in memory.

#include "engine/runtime/preparation.hpp"
#include "kernels/image.hpp"

namespace accord::engine {

/// [batch, channels, length] as an image of one row; kUnsupported for what is neither.
Result<Tensor> as_image(const Preparation& op, Tensor tensor);

/// `image`, or a copy of it, with its channels last. REQUIRES: four dimensions.
Result<Tensor> channels_last(Preparation& op, const Tensor& image);

/// The first output, of three or four dimensions, with its channels last.
Result<Tensor> make_channels_last(Preparation& op, const Sizes& sizes);

/// What the arguments of a convolution over `image` say. kCorrupt if they, or `weight` [out, in, ..] with those groups, do not fit. `length`: its
/// input has three dimensions.
Result<kernels::ConvolutionShape> convolution_shape(const Preparation& op, const Tensor& image, const Tensor& weight,
                                                    std::int64_t groups, bool length);

/// Whether a convolution multiplies the places of its input as they lie.
bool is_plain(const kernels::ConvolutionShape& shape);

}  // namespace accord::engine
