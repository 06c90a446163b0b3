// A convolution is a product of packed weights with rows: the inputs that each place of the output sees. So is a linear
// layer over the channels of a place.
#include "engine/ops/image.hpp"

#include <algorithm>

#include "base/rounding.hpp"
#include "engine/host/run.hpp"
#include "engine/host/steps.hpp"
#include "engine/program/calls.hpp"
#include "kernels/linear/product.hpp"

namespace accord::engine::host {
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
  Tensor x, y;
  std::optional<Tensor> bias;       // in float32, without gaps
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
    ACCORD_RETURN_IF_ERROR(kernels::product(call, kernels::full_share(call), {scratch, kernels::kProductScratch}));
  }
  return Status();
}

Status add_convolution(Preparation& op, const ConvolutionCall& call) {
  if (call.packed == nullptr) {
    return op.unsupported("a convolution has a kernel only with weights of the package");
  }
  const kernels::ConvolutionShape& shape = call.shape;
  const std::int64_t channels = shape.channels / call.groups;
  if (call.packed->count() != call.groups || call.packed->in() != shape.kernel.height * shape.kernel.width * channels) {
    return op.corrupt("its weight does not fit its image");
  }
  Convolution convolution;
  convolution.weights = call.packed;
  convolution.shape = shape;
  convolution.x = call.x;
  convolution.y = call.y;
  convolution.plain = is_plain(shape);
  if (call.bias) {
    ACCORD_ASSIGN_OR_RETURN(const Tensor wide, op.converted(*call.bias, DType::kFloat32));
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
  op.step([convolution](const Execution& execution) {
    const std::int64_t parts = (convolution.rows + convolution.block - 1) / convolution.block;
    return pool_of(execution).run(
        static_cast<int>(parts), [&](int part, int thread) { return run_block(convolution, execution, part, thread); });
  });
  return Status();
}

// Returns memory for float32 elements in the order of `tensor`, which has no gaps.
Result<Tensor> float32_like(Preparation& op, const Tensor& tensor) {
  ACCORD_ASSIGN_OR_RETURN(Tensor wide, op.scratch(DType::kFloat32, tensor.sizes()));
  wide.layout = tensor.layout;
  return wide;
}

// Computes in float32.
Status add_group_norm(Preparation& op, const GroupNormCall& norm) {
  Tensor x = norm.x, y = norm.y;
  if (x.dtype != DType::kFloat32) {
    ACCORD_ASSIGN_OR_RETURN(x, float32_like(op, norm.x));
    ACCORD_RETURN_IF_ERROR(op.add(ConvertCall{norm.x, x}));
    ACCORD_ASSIGN_OR_RETURN(y, float32_like(op, norm.y));
  }
  std::optional<Tensor> weight = norm.weight, bias = norm.bias;
  for (auto* tensor : {&weight, &bias}) {
    if (!*tensor) continue;
    ACCORD_ASSIGN_OR_RETURN(*tensor, op.converted(**tensor, DType::kFloat32));
  }
  kernels::GroupNormCall call;
  call.batch = x.size(0);
  call.positions = x.size(2) * x.size(3);
  call.channels = x.size(1);
  call.groups = norm.groups;
  call.eps = norm.eps;
  op.step([=](const Execution& execution) {
    kernels::GroupNormCall mine = call;
    mine.x = execution.data<const float>(x);
    mine.weight = weight ? execution.data<const float>(*weight) : nullptr;
    mine.bias = bias ? execution.data<const float>(*bias) : nullptr;
    mine.y = execution.data<float>(y);
    const int parts = pool_of(execution).threads();
    return pool_of(execution).run(parts, [&](int part) {
      const PartRange range = part_range(mine.batch * mine.groups, 1, part, parts);
      kernels::group_norm(mine, range.first, range.last);
      return Status();
    });
  });
  return y.dtype == norm.y.dtype ? Status() : op.add(ConvertCall{y, norm.y});
}

Status add_upsample(Preparation& op, const UpsampleCall& upsample) {
  const auto& [x, y] = upsample;
  kernels::UpsampleCall call;
  call.batch = x.size(0);
  call.input = {x.size(2), x.size(3)};
  call.output = {y.size(2), y.size(3)};
  call.position_bytes = static_cast<std::size_t>(x.size(1)) * size_of(x.dtype);
  op.step([call, upsample](const Execution& execution) {
    kernels::UpsampleCall mine = call;
    mine.x = execution.address(upsample.x);
    mine.y = execution.address(upsample.y);
    const int parts = pool_of(execution).threads();
    return pool_of(execution).run(parts, [&](int part) {
      const PartRange range = part_range(mine.batch * mine.output.height, 1, part, parts);
      kernels::upsample_nearest(mine, range.first, range.last);
      return Status();
    });
  });
  return Status();
}

}  // namespace

void set_image_steps(StepTable& table) {
  table.set<ConvolutionCall>(add_convolution);
  table.set<GroupNormCall>(add_group_norm);
  table.set<UpsampleCall>(add_upsample);
}

}  // namespace accord::engine::host
