// A convolution is computed as a product of patches, the inputs that each place of the output sees, with the weight
// [outputs, patch]. For a kernel of one place, the patches are the rows of x as they are. Other patches are gathered
// in pieces as large as a GPU's second-level cache, from which the product then reads them. Groups with few outputs,
// as in depthwise convolutions, are too small for a matrix product: a kernel adds them up directly.
#include "engine/ops/image.hpp"

#include <algorithm>

#include "engine/gpu/elementwise.hpp"
#include "engine/gpu/kernels/image_kernels.hpp"
#include "engine/gpu/library_product.hpp"
#include "engine/gpu/run.hpp"
#include "engine/gpu/steps.hpp"

namespace accord::engine::gpu {
namespace {

constexpr std::int64_t kFewOutputs = 8;  // per group
constexpr std::int64_t kPieceBytes = std::int64_t{32} << 20;

// Views columns [first, first + columns) of `rows` rows, from `row` on, of a matrix without gaps that is `width` wide
// and consists of the elements of `tensor`.
Tensor part_of(const Tensor& tensor, std::int64_t width, std::int64_t row, std::int64_t rows, std::int64_t first,
               std::int64_t columns) {
  Tensor part = tensor;
  const Sizes sizes = {rows, columns}, strides = {width, 1};
  part.layout = kernels::strided_layout(sizes, strides);
  part.offset += (row * width + first) * static_cast<std::int64_t>(size_of(tensor.dtype));
  return part;
}

template <typename T>
Step gather_patches_step(GatherPatches<T> kernel, const Tensor& x, const Tensor& patches, std::int64_t element) {
  const std::int64_t each = static_cast<std::int64_t>(sizeof(T)) / element;
  kernel.shape.channels /= each;
  kernel.first /= each;
  kernel.channels /= each;
  return [=](const Execution& execution) {
    GatherPatches<T> placed = kernel;
    placed.x = execution.data<const T>(x);
    placed.patches = execution.data<T>(patches);
    return launch_over(device_run(execution), placed, placed.count());
  };
}

/// Places [first_place, first_place + places) of a convolution's output, and the channels that they read.
struct Patches {
  std::int64_t first_place = 0, places = 0, first = 0, channels = 0;
};

template <typename T>
GatherPatches<T> gather_kernel(const kernels::ConvolutionShape& shape, const Patches& patches) {
  GatherPatches<T> kernel;
  kernel.shape = shape;
  kernel.first_place = patches.first_place;
  kernel.places = patches.places;
  kernel.first = patches.first;
  kernel.channels = patches.channels;
  return kernel;
}

// Tensors without an offset begin at a multiple of a word.
bool has_whole_words(const Tensor& tensor, std::int64_t elements) {
  const auto bytes = static_cast<std::int64_t>(size_of(tensor.dtype)) * elements;
  return (bytes | tensor.offset) % static_cast<std::int64_t>(sizeof(device::Words)) == 0;
}

void add_gather_patches(Preparation& op, const ConvolutionCall& convolution, const Patches& patches, const Tensor& to) {
  const kernels::ConvolutionShape& shape = convolution.shape;
  const auto element = static_cast<std::int64_t>(size_of(to.dtype));
  if (has_whole_words(convolution.x, shape.channels | patches.first | patches.channels)) {
    op.step(gather_patches_step(gather_kernel<device::Words>(shape, patches), convolution.x, to, element));
  } else if (element == 2) {
    op.step(gather_patches_step(gather_kernel<std::uint16_t>(shape, patches), convolution.x, to, element));
  } else {
    op.step(gather_patches_step(gather_kernel<std::uint32_t>(shape, patches), convolution.x, to, element));
  }
}

void add_direct_convolution(Preparation& op, const ConvolutionCall& convolution) {
  DirectConvolution kernel;
  kernel.shape = convolution.shape;
  kernel.dtype = convolution.x.dtype;
  kernel.y_dtype = convolution.y.dtype;
  kernel.groups = convolution.groups;
  kernel.outputs = convolution.y.size(1);
  op.step([=, tensors = convolution](const Execution& execution) {
    DirectConvolution placed = kernel;
    placed.x = execution.address(tensors.x);
    placed.weight = execution.address(tensors.weight);
    placed.bias = tensors.bias ? execution.address(*tensors.bias) : nullptr;
    placed.y = execution.address(tensors.y);
    return launch_over(device_run(execution), placed, tensors.y.count());
  });
}

Status add_patch_products(Preparation& op, const ConvolutionCall& convolution) {
  const kernels::ConvolutionShape& shape = convolution.shape;
  const std::int64_t places = shape.batch * shape.output.height * shape.output.width;
  const std::int64_t outputs = convolution.y.size(1), group_outputs = outputs / convolution.groups;
  const std::int64_t channels = shape.channels / convolution.groups;
  const std::int64_t width = shape.kernel.height * shape.kernel.width * channels;
  if (width == 0) return op.unsupported("a convolution without inputs has no kernel");
  const bool plain = is_plain(shape);
  std::int64_t together = places;
  Tensor patches;
  if (!plain) {
    const std::int64_t row_bytes = width * static_cast<std::int64_t>(size_of(convolution.x.dtype));
    together = std::min(std::max<std::int64_t>(kPieceBytes / row_bytes / 64, 1) * 64, places);
    ACCORD_ASSIGN_OR_RETURN(patches, op.scratch(convolution.x.dtype, {together, width}));
  }
  for (std::int64_t place = 0; place < places; place += together) {
    const std::int64_t count = std::min(together, places - place);
    for (std::int64_t group = 0; group < convolution.groups; ++group) {
      const std::int64_t first = group * channels, output = group * group_outputs;
      if (!plain) add_gather_patches(op, convolution, {place, count, first, channels}, patches);
      const Tensor rows = plain ? part_of(convolution.x, shape.channels, place, count, first, channels)
                                : part_of(patches, width, 0, count, 0, width);
      const Tensor weight = part_of(convolution.weight, width, output, group_outputs, 0, width);
      ProductOptions options{.choice = choice_for(op, convolution.weight)};
      if (convolution.bias) {
        options.bias = part_of(*convolution.bias, group_outputs, group, 1, 0, group_outputs);
      }
      const Tensor to = part_of(convolution.y, outputs, place, count, output, group_outputs);
      ACCORD_RETURN_IF_ERROR(add_library_product(op, rows, transposed(weight), to, options));
    }
  }
  return Status();
}

template <typename T>
Step upsample_step(UpsampleNearest<T> kernel, const Tensor& x, const Tensor& y) {
  kernel.channels = x.size(1) * static_cast<std::int64_t>(size_of(x.dtype)) / static_cast<std::int64_t>(sizeof(T));
  kernel.batch = x.size(0);
  kernel.input = {x.size(2), x.size(3)};
  kernel.output = {y.size(2), y.size(3)};
  kernel.row_scale = static_cast<float>(x.size(2)) / static_cast<float>(y.size(2));
  kernel.column_scale = static_cast<float>(x.size(3)) / static_cast<float>(y.size(3));
  return [=](const Execution& execution) {
    UpsampleNearest<T> placed = kernel;
    placed.x = execution.data<const T>(x);
    placed.y = execution.data<T>(y);
    return launch_over(device_run(execution), placed, placed.count());
  };
}

// Takes a weight with its inputs last and a bias of y's dtype, both without gaps.
//
// Cost: unless the patches are rows of x, a copy of all inputs that the places read, in pieces of 32 MiB of the arena;
// and a product by the library for each piece and group. Groups with few outputs need neither.
Status add_convolution_steps(Preparation& op, const ConvolutionCall& convolution) {
  if (convolution.y.count() == 0) return Status();
  if (convolution.y.size(1) / convolution.groups >= kFewOutputs) return add_patch_products(op, convolution);
  add_direct_convolution(op, convolution);
  return Status();
}

// Weights in a GPU's memory have their inputs last (parameters.hpp). Other weights are converted to that order.
Status add_convolution(Preparation& op, const ConvolutionCall& call) {
  ConvolutionCall convolution = call;
  ACCORD_ASSIGN_OR_RETURN(Tensor weight, as_image(op, call.weight));
  static constexpr int kInputsLast[] = {0, 2, 3, 1};
  weight.layout = kernels::permuted_layout(weight.layout, kInputsLast);
  ACCORD_ASSIGN_OR_RETURN(convolution.weight, op.contiguous(weight));
  if (call.bias) {
    ACCORD_ASSIGN_OR_RETURN(const Tensor same, op.converted(*call.bias, call.y.dtype));
    ACCORD_ASSIGN_OR_RETURN(convolution.bias, op.contiguous(same));
  }
  return add_convolution_steps(op, convolution);
}

Status add_group_norm(Preparation& op, const GroupNormCall& norm) {
  GroupNorm kernel;
  kernel.batch = norm.x.size(0);
  kernel.places = norm.x.size(2) * norm.x.size(3);
  kernel.channels = norm.x.size(1);
  kernel.groups = norm.groups;
  kernel.eps = norm.eps;
  op.step([=](const Execution& execution) {
    const auto floats = [&](const std::optional<Tensor>& tensor) {
      return tensor ? AnyFloats{execution.address(*tensor), tensor->dtype} : AnyFloats();
    };
    GroupNorm placed = kernel;
    placed.x = floats(norm.x);
    placed.weight = floats(norm.weight);
    placed.bias = floats(norm.bias);
    placed.y = execution.address(norm.y);
    return launch_blocks(device_run(execution), placed, placed.batch * placed.groups);
  });
  return Status();
}

Step upsample_step(const Tensor& x, const Tensor& y) {
  if (has_whole_words(x, x.size(1))) return upsample_step(UpsampleNearest<device::Words>(), x, y);
  switch (size_of(x.dtype)) {
    case 1: return upsample_step(UpsampleNearest<std::uint8_t>(), x, y);
    case 2: return upsample_step(UpsampleNearest<std::uint16_t>(), x, y);
    // 8-byte elements are moved as two units.
    default: return upsample_step(UpsampleNearest<std::uint32_t>(), x, y);
  }
}

Status add_upsample(Preparation& op, const UpsampleCall& call) {
  op.step(upsample_step(call.x, call.y));
  return Status();
}

}  // namespace

void set_image_steps(StepTable& table) {
  table.set<ConvolutionCall>(add_convolution);
  table.set<GroupNormCall>(add_group_norm);
  table.set<UpsampleCall>(add_upsample);
}

}  // namespace accord::engine::gpu
