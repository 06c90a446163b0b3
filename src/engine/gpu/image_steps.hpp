#pragma once
// Steps of programs on a device that work on images: the device's versions of kernels/image.hpp, by its kernels and
// its library of products.

#include "engine/program/preparation.hpp"
#include "kernels/image.hpp"

namespace accord::engine {

/// y = convolution of x with weight, + bias. x, weight and y have their channels last in memory; x and weight have
/// the same dtype.
struct DeviceConvolution {
  kernels::ConvolutionShape shape;
  std::int64_t groups = 1;
  Tensor x, weight, y;
  std::optional<Tensor> bias;  ///< [outputs] of y's dtype, without gaps
};
/// Adds the steps of the convolution. Cost: unless the patches are rows of x, a copy of all inputs that the places
/// read, in pieces of 32 MiB of the arena; and a product by the library for each piece and group. Groups with few
/// outputs need neither.
Status add_convolution_on_device(Preparation& op, const DeviceConvolution& convolution);

/// kernels::group_norm of `x` into `y`, both with their channels last. weight and bias: [channels] of any float
/// dtype, without gaps.
struct GroupNormTensors {
  std::int64_t groups = 1;
  float eps = 0.0F;
  Tensor x, y;
  std::optional<Tensor> weight, bias;
};
Step group_norm_on_device(const GroupNormTensors& norm);

/// kernels::upsample_nearest of `x` into `y`, both with their channels last.
Step upsample_on_device(const Tensor& x, const Tensor& y);

}  // namespace accord::engine
