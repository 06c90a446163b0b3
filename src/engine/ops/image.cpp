// Convolutions, group norms and upsampling. All of them read and write images with the channels last in memory,
// whatever their shape ([batch, channels, height, width]), and ops between them keep that order. A convolution is
// therefore a product of rows, one for each place of its output, with packed weights. So is a linear layer over the
// channels of a place.
#include <algorithm>

#include "base/rounding.hpp"
#include "engine/gpu/image_steps.hpp"
#include "engine/ops/images.hpp"
#include "engine/ops/op_registry.hpp"
#include "kernels/image.hpp"
#include "kernels/linear/product.hpp"

namespace accord::engine {
namespace {

constexpr std::int64_t kImageBlockRows = 240;  // per thread: places of the output that are multiplied together
constexpr std::int64_t kImageRowGrain = 16;

/// Everything but addresses.
struct Convolution {
  const PackedStack* weights = nullptr;
  kernels::ConvolutionShape shape;
  kernels::Arithmetic arithmetic = kernels::Arithmetic::kFloat32;
  bool plain = false;      // multiplies the places as they are in memory
  std::int64_t rows = 0;   // places of the output
  std::int64_t block = 0;  // rows of one part
  Tensor x, y;             // channels last
  std::optional<Tensor> bias;
  Tensor prepared, patch, scratch;  // per thread
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

// Uses packed weights and float32 biases.
Status add_convolution_on_cpu(Preparation& op, Convolution convolution) {
  convolution.plain = is_plain(convolution.shape);
  const kernels::ConvolutionShape& shape = convolution.shape;
  if (convolution.bias) {
    ACCORD_ASSIGN_OR_RETURN(const Tensor wide, op.converted(*convolution.bias, DType::kFloat32));
    ACCORD_ASSIGN_OR_RETURN(convolution.bias, op.contiguous(wide));
  }
  convolution.arithmetic = op.arithmetic(convolution.x.dtype, convolution.weights->format());
  convolution.rows = shape.batch * shape.output.height * shape.output.width;
  const std::int64_t share = (convolution.rows + op.threads() - 1) / op.threads();
  convolution.block =
      std::clamp((share + kImageRowGrain - 1) / kImageRowGrain * kImageRowGrain, kImageRowGrain, kImageBlockRows);
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

// Weights in device memory have their inputs last (device_parameters.hpp). Other weights are converted to that order.
Status prepare_on_device(Preparation& op, DeviceConvolution convolution) {
  if (convolution.weight.dtype != convolution.x.dtype)
    return op.unsupported("its image is of another dtype than its weight");
  ACCORD_ASSIGN_OR_RETURN(Tensor weight, as_image(op, convolution.weight));
  static constexpr int kInputsLast[] = {0, 2, 3, 1};
  weight.layout = kernels::permuted_layout(weight.layout, kInputsLast);
  ACCORD_ASSIGN_OR_RETURN(convolution.weight, op.contiguous(weight));
  if (convolution.bias) {
    ACCORD_ASSIGN_OR_RETURN(const Tensor same, op.converted(*convolution.bias, convolution.y.dtype));
    ACCORD_ASSIGN_OR_RETURN(convolution.bias, op.contiguous(same));
  }
  return add_convolution_on_device(op, convolution);
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
  const PackedStack* const packed = op.packed_convolution("weight");
  if (!op.is_on_device() && packed == nullptr)
    return op.unsupported("a convolution has a kernel with weights of the package only");
  ACCORD_ASSIGN_OR_RETURN(const Tensor x, channels_last(op, image));
  ACCORD_ASSIGN_OR_RETURN(const Tensor y, make_channels_last(op, length ? Sizes{shape.batch, out, shape.output.width}
                                                                        : Sizes{shape.batch, out, shape.output.height,
                                                                                shape.output.width}));
  if (op.is_on_device()) return prepare_on_device(op, {shape, groups, x, weight, y, bias});
  if (packed->count() != groups || packed->in() != shape.kernel.height * shape.kernel.width * weight.size(1))
    return op.corrupt("its weight does not fit its image");
  Convolution convolution;
  convolution.weights = packed;
  convolution.shape = shape;
  convolution.x = x;
  convolution.y = y;
  convolution.bias = bias;
  return add_convolution_on_cpu(op, convolution);
}

Status prepare_group_norm(Preparation& op) {
  if (!op.is_on_device()) op.widen();
  ACCORD_ASSIGN_OR_RETURN(const Tensor input, op.tensor("input"));
  ACCORD_ASSIGN_OR_RETURN(const Tensor image, as_image(op, input));
  ACCORD_RETURN_IF_ERROR(op.require(image, {DType::kFloat32, DType::kBFloat16, DType::kFloat16}));
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
  ACCORD_ASSIGN_OR_RETURN(const Tensor y, make_channels_last(op, input.sizes()));
  if (op.is_on_device()) {
    Step step = group_norm_on_device({groups, static_cast<float>(eps), x, y, weight, bias});
    op.step_always(step, [&] { return step; });
    return Status();
  }
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
  ACCORD_ASSIGN_OR_RETURN(const Tensor y, make_channels_last(op, {self.size(0), self.size(1), size[0], size[1]}));
  kernels::UpsampleCall call;
  call.batch = self.size(0);
  call.input = {self.size(2), self.size(3)};
  call.output = {size[0], size[1]};
  call.place_bytes = static_cast<std::size_t>(self.size(1)) * size_of(self.dtype);
  op.step(
      [=](const Execution& execution) {
        kernels::UpsampleCall mine = call;
        mine.x = execution.address(x);
        mine.y = execution.address(y);
        const int parts = execution.pool.threads();
        return execution.pool.run(parts, [&](int part) {
          const PartRange range = part_range(mine.batch * mine.output.height, 1, part, parts);
          kernels::upsample_nearest(mine, range.first, range.last);
          return Status();
        });
      },
      [&] { return upsample_on_device(x, y); });
  return Status();
}

constexpr OpEntry kImageOps[] = {
    {"aten.convolution.default", prepare_convolution},
    {"aten.group_norm.default", prepare_group_norm},
    {"aten.upsample_nearest2d.default", prepare_upsample},
};

}  // namespace

std::span<const OpEntry> image_ops() { return kImageOps; }

}  // namespace accord::engine
