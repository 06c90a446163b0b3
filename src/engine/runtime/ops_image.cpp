// Convolutions, norms over groups of channels and enlarged images. All of them read and write images with their channels last in
// memory, whatever their shape says ([batch, channels, height, width]), and ops between them keep that order; so a convolution is
// a product of rows, one for each place of its output, with packed weights, and a layer over the channels of a place is one too.
#include <algorithm>

#include "base/rounding.hpp"
#include "engine/runtime/op_registry.hpp"
#include "kernels/image.hpp"
#include "kernels/index.hpp"
#include "kernels/linear/product.hpp"

namespace accord::engine {
namespace {

constexpr std::int64_t kBlockRows = 240;  // of a thread: places of the output that are multiplied together
constexpr std::int64_t kRowGrain = 16;
constexpr int kChannelsLast[] = {0, 2, 3, 1};

// [batch, channels, length] as an image of one row.
Result<Tensor> as_image(const Preparation& op, Tensor tensor) {
  if (tensor.dims() == 3) {
    const Sizes sizes = {tensor.size(0), tensor.size(1), 1, tensor.size(2)};
    const Sizes strides = {tensor.stride(0), tensor.stride(1), tensor.size(2) * tensor.stride(2), tensor.stride(2)};
    tensor.layout = kernels::strided_layout(sizes, strides);
  }
  if (tensor.dims() != 4) return op.unsupported("images have a kernel with 3 or 4 dimensions");
  return tensor;
}

// `image`, or a copy of it, with its channels last.
Result<Tensor> channels_last(Preparation& op, const Tensor& image) {
  if (is_channels_last(image.layout)) return image;
  ACCORD_ASSIGN_OR_RETURN(Tensor copy,
                          op.scratch(image.dtype, {image.size(0), image.size(2), image.size(3), image.size(1)}));
  static constexpr int kBack[] = {0, 3, 1, 2};
  copy.layout = kernels::permuted_layout(copy.layout, kBack);
  op.step(
      [=](const Execution& execution) { return kernels::copy_strided(execution.read(image), execution.write(copy)); });
  return copy;
}

// Height and width of an argument that has both, or one for both, or (of a convolution over a length) the width alone.
Result<kernels::Extent2> extent(const Preparation& op, std::string_view name, bool length, std::int64_t otherwise) {
  ACCORD_ASSIGN_OR_RETURN(const Sizes given, op.integers(name));
  if (given.empty()) return op.corrupt("an argument has no sizes");
  if (length) return kernels::Extent2{otherwise, given.back()};
  return kernels::Extent2{given.front(), given.back()};
}

/// All but addresses.
struct Convolution {
  const PackedStack* weights = nullptr;
  kernels::ConvolutionShape shape;
  kernels::Arithmetic arithmetic = kernels::Arithmetic::kFloat32;
  bool plain = false;      // a product of the places as they lie
  std::int64_t rows = 0;   // places of the output
  std::int64_t block = 0;  // rows of a part
  Tensor x, y;             // channels last
  std::optional<Tensor> bias;
  Tensor prepared, patch, scratch;  // of each thread
};

Status run_block(const Convolution& convolution, const Execution& execution, int part, int thread) {
  const std::int64_t first = part * convolution.block;
  const std::int64_t rows = std::min(convolution.block, convolution.rows - first);
  const std::int64_t out = convolution.weights->out(), in_channels = convolution.shape.channels;
  const std::int64_t out_channels = out * convolution.weights->count();
  const std::int64_t channels = in_channels / convolution.weights->count();
  const std::size_t element = size_of(convolution.x.dtype);
  const std::byte* const x = execution.address(convolution.x);
  std::byte* const prepared = execution.address(convolution.prepared) + thread * convolution.prepared.stride(0);
  std::byte* const patch = execution.address(convolution.patch) + thread * convolution.patch.stride(0);
  std::byte* const scratch = execution.address(convolution.scratch) + thread * convolution.scratch.stride(0);
  for (std::int64_t group = 0; group < convolution.weights->count(); ++group) {
    const kernels::PackedMatrix matrix = convolution.weights->matrix(group);
    ACCORD_ASSIGN_OR_RETURN(const kernels::RowsLayout layout,
                            kernels::rows_layout(matrix, convolution.arithmetic, rows));
    for (std::int64_t row = 0; row < rows; ++row) {
      const std::byte* from = x + static_cast<std::size_t>((first + row) * in_channels + group * channels) * element;
      if (!convolution.plain) {
        kernels::gather_patch(convolution.shape, x, element, first + row, group * channels, channels, patch);
        from = patch;
      }
      kernels::prepare_row(layout, from, convolution.x.dtype, row, prepared);
    }
    kernels::ProductCall call;
    call.weights = &matrix;
    call.layout = &layout;
    call.x = prepared;
    call.bias = convolution.bias ? execution.data<const float>(*convolution.bias) + group * out : nullptr;
    const std::size_t offset =
        static_cast<std::size_t>(first * out_channels + group * out) * size_of(convolution.y.dtype);
    call.y = {execution.address(convolution.y) + offset, convolution.y.dtype, out_channels};
    ACCORD_RETURN_IF_ERROR(kernels::product(call, kernels::whole(call), {scratch, kernels::kProductScratch}));
  }
  return Status();
}

Status set_shape(Preparation& op, Convolution& convolution, const Tensor& image, const Tensor& weight, bool length) {
  kernels::ConvolutionShape& shape = convolution.shape;
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
  const bool whole =
      shape.stride.height == 1 && shape.stride.width == 1 && shape.padding.height == 0 && shape.padding.width == 0;
  convolution.plain = whole && shape.kernel.height == 1 && shape.kernel.width == 1;
  const std::int64_t places = shape.kernel.height * shape.kernel.width;
  const PackedStack& weights = *convolution.weights;
  if (shape.channels != weight.size(1) * weights.count() || weights.in() != places * weight.size(1)) {
    return op.corrupt("its weight does not fit its image");
  }
  return Status();
}

Status prepare_convolution(Preparation& op) {
  ACCORD_ASSIGN_OR_RETURN(const Tensor input, op.tensor("input"));
  ACCORD_ASSIGN_OR_RETURN(const Tensor weight, op.tensor("weight"));
  ACCORD_ASSIGN_OR_RETURN(const bool transposed, op.flag("transposed", false));
  Convolution convolution;
  convolution.weights = op.packed_convolution("weight");
  if (transposed) return op.unsupported("a transposed convolution has no kernel");
  if (convolution.weights == nullptr)
    return op.unsupported("a convolution has a kernel with weights of the package only");
  if (weight.dims() != input.dims()) return op.corrupt("its weight does not fit its image");
  ACCORD_ASSIGN_OR_RETURN(const Tensor image, as_image(op, input));
  ACCORD_RETURN_IF_ERROR(op.require(image, {DType::kFloat32, DType::kBFloat16, DType::kFloat16}));
  const bool length = input.dims() == 3;
  ACCORD_RETURN_IF_ERROR(set_shape(op, convolution, image, weight, length));
  ACCORD_ASSIGN_OR_RETURN(convolution.bias, op.maybe_tensor("bias"));
  const std::int64_t out = weight.size(0);
  if (convolution.bias) {
    if (convolution.bias->dims() != 1 || convolution.bias->size(0) != out) return op.corrupt("its bias does not fit");
    ACCORD_ASSIGN_OR_RETURN(const Tensor wide, op.converted(*convolution.bias, DType::kFloat32));
    ACCORD_ASSIGN_OR_RETURN(convolution.bias, op.contiguous(wide));
  }
  ACCORD_ASSIGN_OR_RETURN(convolution.x, channels_last(op, image));
  const kernels::ConvolutionShape& shape = convolution.shape;
  if (length) {
    static constexpr int kLengthLast[] = {0, 2, 1};
    ACCORD_ASSIGN_OR_RETURN(convolution.y, op.make_ordered(0, {shape.batch, out, shape.output.width}, kLengthLast));
  } else {
    const Sizes sizes = {shape.batch, out, shape.output.height, shape.output.width};
    ACCORD_ASSIGN_OR_RETURN(convolution.y, op.make_ordered(0, sizes, kChannelsLast));
  }
  convolution.arithmetic = op.arithmetic(convolution.x.dtype, convolution.weights->format());
  convolution.rows = shape.batch * shape.output.height * shape.output.width;
  const std::int64_t share = (convolution.rows + op.threads() - 1) / op.threads();
  convolution.block = std::clamp((share + kRowGrain - 1) / kRowGrain * kRowGrain, kRowGrain, kBlockRows);
  ACCORD_ASSIGN_OR_RETURN(
      const kernels::RowsLayout layout,
      kernels::rows_layout(convolution.weights->matrix(0), convolution.arithmetic, convolution.block));
  const auto lines = [](std::size_t bytes) { return static_cast<std::int64_t>(round_up(bytes, 64)); };
  ACCORD_ASSIGN_OR_RETURN(convolution.prepared, op.scratch(DType::kUInt8, {op.threads(), lines(layout.bytes())}));
  const auto patch = static_cast<std::size_t>(convolution.weights->in()) * size_of(convolution.x.dtype);
  ACCORD_ASSIGN_OR_RETURN(convolution.patch, op.scratch(DType::kUInt8, {op.threads(), lines(patch)}));
  ACCORD_ASSIGN_OR_RETURN(convolution.scratch,
                          op.scratch(DType::kUInt8, {op.threads(), lines(kernels::kProductScratch)}));
  op.step_always([convolution](const Execution& execution) {
    const std::int64_t parts = (convolution.rows + convolution.block - 1) / convolution.block;
    return execution.pool.run(static_cast<int>(parts),
                              [&](int part, int thread) { return run_block(convolution, execution, part, thread); });
  });
  return Status();
}

Status prepare_group_norm(Preparation& op) {
  op.widen();
  ACCORD_ASSIGN_OR_RETURN(const Tensor input, op.tensor("input"));
  ACCORD_ASSIGN_OR_RETURN(const Tensor image, as_image(op, input));
  ACCORD_RETURN_IF_ERROR(op.require(image, {DType::kFloat32}));
  ACCORD_ASSIGN_OR_RETURN(const std::int64_t groups, op.integer("num_groups"));
  if (groups < 1 || image.size(1) % groups != 0) return op.corrupt("its groups do not divide its channels");
  ACCORD_ASSIGN_OR_RETURN(std::optional<Tensor> weight, op.maybe_tensor("weight"));
  ACCORD_ASSIGN_OR_RETURN(std::optional<Tensor> bias, op.maybe_tensor("bias"));
  for (auto* tensor : {&weight, &bias}) {
    if (!*tensor) continue;
    if ((*tensor)->dims() != 1 || (*tensor)->size(0) != image.size(1))
      return op.corrupt("its weight or bias does not fit");
    ACCORD_ASSIGN_OR_RETURN(*tensor, op.contiguous(**tensor));
  }
  ACCORD_ASSIGN_OR_RETURN(const double eps, op.real("eps", 1e-5));
  ACCORD_ASSIGN_OR_RETURN(const Tensor x, channels_last(op, image));
  static constexpr int kLengthLast[] = {0, 2, 1};
  const bool length = input.dims() == 3;
  ACCORD_ASSIGN_OR_RETURN(const Tensor y, length ? op.make_ordered(0, input.sizes(), kLengthLast)
                                                 : op.make_ordered(0, input.sizes(), kChannelsLast));
  kernels::GroupNormCall call;
  call.batch = image.size(0);
  call.places = image.size(2) * image.size(3);
  call.channels = image.size(1);
  call.groups = groups;
  call.eps = static_cast<float>(eps);
  op.step([=](const Execution& execution) {
    kernels::GroupNormCall mine = call;
    mine.x = execution.data<const float>(x);
    mine.weight = weight ? execution.data<const float>(*weight) : nullptr;
    mine.bias = bias ? execution.data<const float>(*bias) : nullptr;
    mine.y = execution.data<float>(y);
    const int parts = execution.pool.threads();
    return execution.pool.run(parts, [&](int part) {
      const PartRange range = part_range(mine.batch * mine.groups, 1, part, parts);
      kernels::group_norm(mine, range.first, range.last);
      return Status();
    });
  });
  return Status();
}

Status prepare_upsample(Preparation& op) {
  ACCORD_ASSIGN_OR_RETURN(const Tensor self, op.tensor("self"));
  if (self.dims() != 4 || self.count() == 0) return op.unsupported("enlarging has a kernel for images only");
  ACCORD_ASSIGN_OR_RETURN(const Sizes size, op.integers("output_size"));
  if (size.size() != 2 || size[0] < 1 || size[1] < 1) return op.corrupt("its output has no height and width");
  for (const int dim : {0, 1}) {
    const auto before = static_cast<double>(self.size(2 + dim)), after = static_cast<double>(size[dim]);
    ACCORD_ASSIGN_OR_RETURN(const double factor, op.real(dim == 0 ? "scales_h" : "scales_w", after / before));
    if (before * factor != after) return op.unsupported("a factor that gives no whole size has no kernel");
  }
  ACCORD_ASSIGN_OR_RETURN(const Tensor x, channels_last(op, self));
  ACCORD_ASSIGN_OR_RETURN(const Tensor y,
                          op.make_ordered(0, {self.size(0), self.size(1), size[0], size[1]}, kChannelsLast));
  kernels::UpsampleCall call;
  call.batch = self.size(0);
  call.input = {self.size(2), self.size(3)};
  call.output = {size[0], size[1]};
  call.place_bytes = static_cast<std::size_t>(self.size(1)) * size_of(self.dtype);
  op.step([=](const Execution& execution) {
    kernels::UpsampleCall mine = call;
    mine.x = execution.address(x);
    mine.y = execution.address(y);
    const int parts = execution.pool.threads();
    return execution.pool.run(parts, [&](int part) {
      const PartRange range = part_range(mine.batch * mine.output.height, 1, part, parts);
      kernels::upsample_nearest(mine, range.first, range.last);
      return Status();
    });
  });
  return Status();
}

constexpr OpEntry kTable[] = {
    {"aten.convolution.default", prepare_convolution},
    {"aten.group_norm.default", prepare_group_norm},
    {"aten.upsample_nearest2d.default", prepare_upsample},
};

}  // namespace

std::span<const OpEntry> image_ops() { return kTable; }

}  // namespace accord::engine
