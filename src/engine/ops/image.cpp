// Convolutions, group norms and upsampling. All of them read and write images with the channels last in memory,
// whatever their shape ([batch, channels, height, width]), and ops between them keep that order. A convolution is
// therefore a product of rows, one for each place of its output.
#include "engine/ops/image.hpp"

#include "engine/ops/op_registry.hpp"
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

// Returns `image`, or a copy of it, with its channels last. REQUIRES: four dimensions.
Result<Tensor> channels_last(Preparation& op, const Tensor& image) {
  if (is_channels_last(image.layout)) return image;
  ACCORD_ASSIGN_OR_RETURN(Tensor copy,
                          op.scratch(image.dtype, {image.size(0), image.size(2), image.size(3), image.size(1)}));
  copy.layout = kernels::permuted_layout(copy.layout, kChannelsBack);
  ACCORD_RETURN_IF_ERROR(op.add(ConvertCall{image, copy}));
  return copy;
}

// Creates the first output, of three or four dimensions, with its channels last.
Result<Tensor> make_channels_last(Preparation& op, const Sizes& sizes) {
  return sizes.size() == 3 ? op.make_ordered(0, sizes, kLengthLast) : op.make_ordered(0, sizes, kChannelsLast);
}

// Returns the shape that the arguments of a convolution over `image` describe. Fails with kCorrupt if they do not fit,
// or if `weight` [out, in, ..] does not fit them with this number of groups. `length`: the input has three dimensions.
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
  const auto is_in_range = [](const kernels::Extent2& extent, std::int64_t least) {
    return extent.height >= least && extent.width >= least && extent.height < (1 << 20) && extent.width < (1 << 20);
  };
  if (!is_in_range(shape.stride, 1) || !is_in_range(shape.padding, 0) || !is_in_range(shape.dilation, 1) ||
      !is_in_range(shape.kernel, 1)) {
    return op.corrupt("its stride, padding, dilation or kernel size is out of range");
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

Status prepare_convolution(Preparation& op) {
  ACCORD_ASSIGN_OR_RETURN(const Tensor input, op.tensor("input"));
  ACCORD_ASSIGN_OR_RETURN(const Tensor weight, op.tensor("weight"));
  ACCORD_ASSIGN_OR_RETURN(const bool transposed, op.flag("transposed", false));
  ACCORD_ASSIGN_OR_RETURN(const std::int64_t groups, op.integer("groups", 1));
  if (transposed) return op.unsupported("a transposed convolution has no kernel");
  if (weight.dims() != input.dims()) return op.corrupt("its weight does not fit its image");
  ACCORD_ASSIGN_OR_RETURN(const Tensor image, as_image(op, input));
  ACCORD_RETURN_IF_ERROR(op.require(image, {DType::kFloat32, DType::kBFloat16, DType::kFloat16}));
  const bool length = input.dims() == 3;
  ACCORD_ASSIGN_OR_RETURN(const kernels::ConvolutionShape shape, convolution_shape(op, image, weight, groups, length));
  ACCORD_ASSIGN_OR_RETURN(const std::optional<Tensor> bias, op.maybe_tensor("bias"));
  const std::int64_t out = weight.size(0);
  if (bias && (bias->dims() != 1 || bias->size(0) != out)) return op.corrupt("its bias does not fit");
  if (weight.dtype != image.dtype) return op.unsupported("its image and its weight have different dtypes");
  ACCORD_ASSIGN_OR_RETURN(const Tensor x, channels_last(op, image));
  ACCORD_ASSIGN_OR_RETURN(const Tensor y, make_channels_last(op, length ? Sizes{shape.batch, out, shape.output.width}
                                                                        : Sizes{shape.batch, out, shape.output.height,
                                                                                shape.output.width}));
  if (op.is_canonical()) op.run_always();
  return op.add(ConvolutionCall{shape, groups, x, weight, op.packed_convolution("weight"), bias, y});
}

Status prepare_group_norm(Preparation& op) {
  ACCORD_ASSIGN_OR_RETURN(const Tensor input, op.tensor("input"));
  ACCORD_ASSIGN_OR_RETURN(const Tensor image, as_image(op, input));
  ACCORD_RETURN_IF_ERROR(op.require(image, {DType::kFloat32, DType::kBFloat16, DType::kFloat16}));
  ACCORD_ASSIGN_OR_RETURN(const std::int64_t groups, op.integer("num_groups"));
  if (groups < 1 || image.size(1) % groups != 0) return op.corrupt("its groups do not divide its channels");
  ACCORD_ASSIGN_OR_RETURN(std::optional<Tensor> weight, op.maybe_tensor("weight"));
  ACCORD_ASSIGN_OR_RETURN(std::optional<Tensor> bias, op.maybe_tensor("bias"));
  for (auto* tensor : {&weight, &bias}) {
    if (!*tensor) continue;
    ACCORD_RETURN_IF_ERROR(op.require(**tensor, {DType::kFloat32, DType::kBFloat16, DType::kFloat16}));
    if ((*tensor)->dims() != 1 || (*tensor)->size(0) != image.size(1))
      return op.corrupt("its weight or bias does not fit");
    ACCORD_ASSIGN_OR_RETURN(*tensor, op.contiguous(**tensor));
  }
  ACCORD_ASSIGN_OR_RETURN(const double eps, op.real("eps", 1e-5));
  ACCORD_ASSIGN_OR_RETURN(const Tensor x, channels_last(op, image));
  ACCORD_ASSIGN_OR_RETURN(const Tensor y, make_channels_last(op, input.sizes()));
  ACCORD_RETURN_IF_ERROR(op.require(y, {x.dtype}));
  if (op.is_canonical()) op.run_always();
  return op.add(GroupNormCall{groups, static_cast<float>(eps), x, weight, bias, y});
}

Status prepare_upsample(Preparation& op) {
  ACCORD_ASSIGN_OR_RETURN(const Tensor self, op.tensor("self"));
  if (self.dims() != 4 || self.count() == 0) return op.unsupported("upsampling has a kernel only for images");
  ACCORD_ASSIGN_OR_RETURN(const Sizes size, op.integers("output_size"));
  if (size.size() != 2 || size[0] < 1 || size[1] < 1) return op.corrupt("its output size is not a height and a width");
  for (const int dim : {0, 1}) {
    const auto before = static_cast<double>(self.size(2 + dim)), after = static_cast<double>(size[dim]);
    ACCORD_ASSIGN_OR_RETURN(const double factor, op.real(dim == 0 ? "scales_h" : "scales_w", after / before));
    if (before * factor != after) return op.unsupported("a scale whose result is not a whole size has no kernel");
  }
  ACCORD_ASSIGN_OR_RETURN(const Tensor x, channels_last(op, self));
  ACCORD_ASSIGN_OR_RETURN(const Tensor y, make_channels_last(op, {self.size(0), self.size(1), size[0], size[1]}));
  ACCORD_RETURN_IF_ERROR(op.require(y, {x.dtype}));
  return op.add(UpsampleCall{x, y});
}

constexpr OpEntry kImageOps[] = {
    {"aten.convolution.default", prepare_convolution},
    {"aten.group_norm.default", prepare_group_norm},
    {"aten.upsample_nearest2d.default", prepare_upsample},
};

}  // namespace

Result<Tensor> as_image(const Preparation& op, Tensor tensor) {
  if (tensor.dims() == 3) {
    const Sizes sizes = {tensor.size(0), tensor.size(1), 1, tensor.size(2)};
    const Sizes strides = {tensor.stride(0), tensor.stride(1), tensor.size(2) * tensor.stride(2), tensor.stride(2)};
    tensor.layout = kernels::strided_layout(sizes, strides);
  }
  if (tensor.dims() != 4) return op.unsupported("only images with 3 or 4 dimensions have a kernel");
  return tensor;
}

bool is_plain(const kernels::ConvolutionShape& shape) {
  return shape.stride.height == 1 && shape.stride.width == 1 && shape.padding.height == 0 && shape.padding.width == 0 &&
         shape.kernel.height == 1 && shape.kernel.width == 1;
}

std::span<const OpEntry> image_ops() { return kImageOps; }

}  // namespace accord::engine
