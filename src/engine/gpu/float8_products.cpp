#include "engine/gpu/float8_products.hpp"

#include <algorithm>
#include <bit>

#include "engine/gpu/elementwise.hpp"
#include "engine/gpu/kernels/float8_kernels.hpp"
#include "engine/gpu/run.hpp"

namespace accord::engine {
namespace {

// Bytes of a part of a weight in the dtype of its inputs: less than the second-level cache of a large GPU holds.
constexpr std::int64_t kWidenedBytes = std::int64_t{32} << 20;

// Views outputs [first, first + count) of a tensor [.., outputs].
Tensor some_outputs(Tensor tensor, std::int64_t first, std::int64_t count) {
  const int last = tensor.dims() - 1;
  tensor.offset += first * tensor.stride(last) * static_cast<std::int64_t>(size_of(tensor.dtype));
  tensor.layout.sizes[static_cast<std::size_t>(last)] = count;
  return tensor;
}

// Widens outputs [first, first + count) of the weight into `to`.
void add_widening(Preparation& op, const Tensor& weight, std::int64_t first, std::int64_t count, const Tensor& to) {
  WidenRows kernel;
  kernel.count = count;
  kernel.width = weight.size(1);
  kernel.scale_rows = weight.size(0);
  kernel.y_dtype = to.dtype;
  op.step([=](const Execution& execution) {
    WidenRows placed = kernel;
    placed.table = weight_operand(execution, weight);
    placed.table.data += first * kernel.width;
    placed.table.scales += first;
    placed.y = execution.address(to);
    return launch_over(device_run(execution), placed, ceil_divide(count * kernel.width, kSixteen));
  });
}

// y = sums * scales of the rows * scales of the outputs + bias.
void add_scaling(Preparation& op, const Tensor& sums, const Tensor& rows, const Tensor& outputs,
                 const std::optional<Tensor>& bias, const Tensor& y) {
  ScaleSums kernel;
  kernel.m = sums.size(0);
  kernel.n = sums.size(1);
  kernel.y_dtype = y.dtype;
  op.step([=](const Execution& execution) {
    ScaleSums placed = kernel;
    placed.sums = execution.address(sums);
    placed.row_scales = execution.data<const float>(rows);
    placed.column_scales = execution.data<const float>(outputs);
    placed.bias = bias ? execution.address(*bias) : nullptr;
    placed.y = execution.address(y);
    return launch_over(device_run(execution), placed, ceil_divide(kernel.m * kernel.n, kSixteen));
  });
}

ProductOptions scaled(const Tensor& rows, const Tensor& outputs, const std::optional<Tensor>& bias,
                      KernelChoice choice) {
  ProductOptions options{.bias = bias, .choice = choice};
  options.a_scales = rows;
  options.b_scales = outputs;
  return options;
}

}  // namespace

Tensor scales_of(const Tensor& weight) {
  const std::int64_t inputs = weight.size(weight.dims() - 1), outputs = inputs == 0 ? 0 : weight.count() / inputs;
  const std::int64_t groups = weight.scale_group == 0 ? 1 : ceil_divide(inputs, weight.scale_group);
  const Sizes sizes = {outputs * groups};
  const auto offset = static_cast<std::int64_t>(float8_bytes(outputs, inputs, groups).scales);
  return {DType::kFloat32, kernels::contiguous_layout(sizes), weight.storage, offset};
}

WeightOperand weight_operand(const Execution& execution, const Tensor& weight) {
  if (!is_float8(weight)) return {execution.address(weight)};
  const auto group = static_cast<unsigned>(std::max(weight.scale_group, 1));
  return {execution.address(weight), execution.data<const float>(scales_of(weight)), std::countr_zero(group)};
}

Result<RoundedRows> round_rows(Preparation& op, const Tensor& x) {
  RoundRows kernel;
  kernel.dtype = x.dtype;
  kernel.x_row_bytes = x.stride(0) * static_cast<std::int64_t>(size_of(x.dtype));
  kernel.rows = x.size(0);
  kernel.width = x.size(1);
  RoundedRows rounded;
  ACCORD_ASSIGN_OR_RETURN(rounded.elements, op.scratch(DType::kFloat8E4M3FN, x.sizes()));
  ACCORD_ASSIGN_OR_RETURN(rounded.scales, op.scratch(DType::kFloat32, {kernel.rows}));
  op.step([=](const Execution& execution) {
    RoundRows placed = kernel;
    placed.x = execution.address(x);
    placed.y = execution.address(rounded.elements);
    placed.scales = execution.data<float>(rounded.scales);
    return launch_blocks(device_run(execution), placed, placed.rows);
  });
  return rounded;
}

Result<Float8Product> float8_product_of(Preparation& op, std::int64_t rows, const Tensor& weight, const Tensor& c,
                                        const std::optional<Tensor>& bias) {
  if (!is_float8(weight) || weight.scale_group != 0 || (weight.size(0) | weight.size(1)) % kSixteen != 0)
    return Float8Product::kNone;
  const Sizes sizes = {rows, weight.size(1)};
  const Tensor x{DType::kFloat8E4M3FN, kernels::contiguous_layout(sizes), weight.storage, 0};
  ACCORD_ASSIGN_OR_RETURN(device::Blas* const blas, device::blas_of(op.device().type));
  ACCORD_ASSIGN_OR_RETURN(const bool takes_scales, blas->takes_scales(op.device()));
  if (takes_scales && c.dtype != DType::kFloat32 && c.offset % kSixteen == 0) {
    ACCORD_ASSIGN_OR_RETURN(const bool has_scaled, has_library_product(op, x, transposed(weight), c,
                                                                       scaled(scales_of(weight), scales_of(weight),
                                                                              bias, KernelChoice::kFirst)));
    if (has_scaled) return Float8Product::kScaled;
  }
  const Tensor sums{DType::kFloat32, kernels::contiguous_layout(c.sizes()), weight.storage, 0};
  ACCORD_ASSIGN_OR_RETURN(const bool has_sums, has_library_product(op, x, transposed(weight), sums, {}));
  return has_sums ? Float8Product::kSums : Float8Product::kNone;
}

Status add_float8_product(Preparation& op, Float8Product kind, const RoundedRows& x, const Tensor& weight,
                          const Tensor& c, const std::optional<Tensor>& bias) {
  const Tensor scales = scales_of(weight);
  const KernelChoice choice = choice_for(op, weight);
  if (kind == Float8Product::kScaled)
    return add_library_product(op, x.elements, transposed(weight), c, scaled(x.scales, scales, bias, choice));
  ACCORD_ASSIGN_OR_RETURN(const Tensor sums, op.scratch(DType::kFloat32, c.sizes()));
  ACCORD_RETURN_IF_ERROR(add_library_product(op, x.elements, transposed(weight), sums, {.choice = choice}));
  add_scaling(op, sums, x.scales, scales, bias, c);
  return Status();
}

Status add_widened_product(Preparation& op, const Tensor& x, const Tensor& weight, const Tensor& c,
                           const ProductOptions& options) {
  const std::int64_t outputs = weight.size(0), width = weight.size(1);
  const std::int64_t row_bytes = std::max<std::int64_t>(width * static_cast<std::int64_t>(size_of(x.dtype)), 1);
  const std::int64_t together = std::min(std::max<std::int64_t>(kWidenedBytes / row_bytes / 64, 1) * 64, outputs);
  ACCORD_ASSIGN_OR_RETURN(const Tensor wide, op.scratch(x.dtype, {together, width}));
  for (std::int64_t first = 0; first < outputs; first += together) {
    const std::int64_t count = std::min(together, outputs - first);
    add_widening(op, weight, first, count, wide);
    ProductOptions of_these = options;
    if (options.bias) of_these.bias = some_outputs(*options.bias, first, count);
    const Tensor these = some_outputs(transposed(wide), 0, count);
    ACCORD_RETURN_IF_ERROR(add_library_product(op, x, these, some_outputs(c, first, count), of_these));
  }
  return Status();
}

}  // namespace accord::engine
