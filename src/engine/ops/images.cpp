#include "engine/ops/images.hpp"

#include "engine/program/calls.hpp"
#include "kernels/index.hpp"

namespace accord::engine {
namespace {

constexpr int kChannelsLast[] = {0, 2, 3, 1};
constexpr int kChannelsBack[] = {0, 3, 1, 2};
constexpr int kLengthLast[] = {0, 2, 1};

// Reads the height and width of an argument that has both, or one value for both, or (for a convolution over a
// length) the width alone.
Result<kernels::Extent2> extent(const Preparation& op, std::string_view name, bool length, std::int64_t otherwise) {
  ACCORD_ASSIGN_OR_RETURN(const Sizes given, op.integers(name));
  if (given.empty()) return op.corrupt("an argument has no sizes");
  if (length) return kernels::Extent2{otherwise, given.back()};
  return kernels::Extent2{given.front(), given.back()};
}

}  // namespace

Result<Tensor> as_image(const Preparation& op, Tensor tensor) {
  if (tensor.dims() == 3) {
    const Sizes sizes = {tensor.size(0), tensor.size(1), 1, tensor.size(2)};
    const Sizes strides = {tensor.stride(0), tensor.stride(1), tensor.size(2) * tensor.stride(2), tensor.stride(2)};
    tensor.layout = kernels::strided_layout(sizes, strides);
  }
  if (tensor.dims() != 4) return op.unsupported("images have a kernel with 3 or 4 dimensions");
  return tensor;
}

Result<Tensor> channels_last(Preparation& op, const Tensor& image) {
  if (is_channels_last(image.layout)) return image;
  ACCORD_ASSIGN_OR_RETURN(Tensor copy,
                          op.scratch(image.dtype, {image.size(0), image.size(2), image.size(3), image.size(1)}));
  copy.layout = kernels::permuted_layout(copy.layout, kChannelsBack);
  ACCORD_RETURN_IF_ERROR(op.add(ConvertCall{image, copy}));
  return copy;
}

Result<Tensor> make_channels_last(Preparation& op, const Sizes& sizes) {
  return sizes.size() == 3 ? op.make_ordered(0, sizes, kLengthLast) : op.make_ordered(0, sizes, kChannelsLast);
}

Result<kernels::ConvolutionShape> convolution_shape(const Preparation& op, const Tensor& image, const Tensor& weight,
                                                    std::int64_t groups, bool length) {
  kernels::ConvolutionShape shape;
  ACCORD_ASSIGN_OR_RETURN(shape.stride, extent(op, "stride", length, 1));
  ACCORD_ASSIGN_OR_RETURN(shape.padding, extent(op, "padding", length, 0));
  ACCORD_ASSIGN_OR_RETURN(shape.dilation, extent(op, "dilation", length, 1));
  shape.batch = image.size(0);
  shape.channels = image.size(1);
  shape.input = {image.size(2), image.size(3)};
  shape.kernel = {length ? 1 : weight.size(2), weight.size(weight.dims() - 1)};
  const auto size = [](std::int64_t input, std::int64_t kernel, std::int64_t stride, std::int64_t padding,
                       std::int64_t dilation) {
    return (input + 2 * padding - dilation * (kernel - 1) - 1) / stride + 1;
  };
  const auto sane = [](const kernels::Extent2& extent, std::int64_t least) {
    return extent.height >= least && extent.width >= least && extent.height < (1 << 20) && extent.width < (1 << 20);
  };
  if (!sane(shape.stride, 1) || !sane(shape.padding, 0) || !sane(shape.dilation, 1) || !sane(shape.kernel, 1)) {
    return op.corrupt("its strides, paddings or dilations cannot be");
  }
  shape.output = {
      size(shape.input.height, shape.kernel.height, shape.stride.height, shape.padding.height, shape.dilation.height),
      size(shape.input.width, shape.kernel.width, shape.stride.width, shape.padding.width, shape.dilation.width)};
  if (shape.output.height < 1 || shape.output.width < 1) return op.corrupt("its kernel is larger than its image");
  if (groups < 1 || weight.size(0) % groups != 0 || shape.channels != weight.size(1) * groups) {
    return op.corrupt("its weight does not fit its image");
  }
  return shape;
}

bool is_plain(const kernels::ConvolutionShape& shape) {
  return shape.stride.height == 1 && shape.stride.width == 1 && shape.padding.height == 0 && shape.padding.width == 0 &&
         shape.kernel.height == 1 && shape.kernel.width == 1;
}

}  // namespace accord::engine
