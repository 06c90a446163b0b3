#pragma once
// Steps of programs on a device over images: what kernels/image.hpp does on the CPU, by kernels of the device and its library of products.

#include "engine/runtime/preparation.hpp"
#include "kernels/image.hpp"

namespace accord::engine {

/// y = convolution of x with weight, + bias, but for addresses. x, weight and y have their channels last in memory; x and weight are of one dtype.
struct DeviceConvolution {
  kernels::ConvolutionShape shape;
  std::int64_t groups = 1;
  Tensor x, weight, y;
  std::optional<Tensor> bias;  ///< [outputs] of y's dtype, without gaps
};
/// Adds the convolution's steps. Cost: with patches that are no rows of x, a copy of all that places see, 32 MiB after 32 MiB of the arena, and
/// for each such piece and group a product by the library. Groups of few outputs are computed without either.
Status add_convolution_on_device(Preparation& op, const DeviceConvolution& convolution);

/// kernels::group_norm of `x` with its channels last, into `y` likewise; weight and bias [channels] of any floats, without gaps.
struct GroupNormTensors {
  std::int64_t groups = 1;
  float eps = 0.0F;
  Tensor x, y;
  std::optional<Tensor> weight, bias;
};
Step group_norm_on_device(const GroupNormTensors& norm);

/// kernels::upsample_nearest of `x` with its channels last, into `y` likewise.
Step upsample_on_device(const Tensor& x, const Tensor& y);

}  // namespace accord::engine
