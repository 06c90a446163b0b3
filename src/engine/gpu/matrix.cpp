// Matrix products on GPUs. Weights are row-major, like everything else: weights that the CPU packs are plain
// tensors here. Products of few rows, and those with float8 weights, go to kernels that read the weights once as they
// are, those of several layers in one launch. Others go to the device's library, which multiplies with weights that
// follow each other in memory at once. Operations after a product that the library does not support are steps of their
// own.
//
// The library multiplies float8 weights with rows of float8, if rows are to be rounded and it has a kernel for that.
// Float8 weights that no kernel of accord multiplies are first widened to the dtype of the rows.
#include "engine/ops/matrix.hpp"

#include <map>

#include "engine/gpu/canonical_products.hpp"
#include "engine/gpu/elementwise.hpp"
#include "engine/gpu/float8_products.hpp"
#include "engine/gpu/library_product.hpp"
#include "engine/gpu/own_products.hpp"
#include "engine/gpu/run.hpp"
#include "engine/gpu/steps.hpp"

namespace accord::engine::gpu {
namespace {

using device::Epilogue;
using kernels::Activation;

// Views a tensor as [rows, width].
Tensor as_matrix(Tensor tensor, const Rows& rows) {
  const Sizes sizes = {rows.rows, rows.width};
  const Sizes strides = {rows.stride, 1};
  tensor.layout = kernels::strided_layout(sizes, strides);
  return tensor;
}

/// The input of one layer, or of several.
struct LayerInput {
  Tensor rows;                         ///< [m, k]
  std::optional<RoundedRows> rounded;  ///< set once a layer has multiplied with them
};

// Returns a bias in the dtype of the outputs.
Result<std::optional<Tensor>> bias_as(Preparation& op, const std::optional<Tensor>& bias, DType dtype) {
  if (!bias) return bias;
  ACCORD_ASSIGN_OR_RETURN(const Tensor same, op.converted(*bias, dtype));
  ACCORD_ASSIGN_OR_RETURN(const Tensor whole, op.contiguous(same));
  return std::optional<Tensor>(whole);
}

// Views a matrix as a group of one. Matrices [groups, m, n] stay.
Tensor as_groups(Tensor matrix) {
  if (matrix.dims() == 3) return matrix;
  const Sizes sizes = {1, matrix.size(0), matrix.size(1)};
  const Sizes strides = {0, matrix.stride(0), matrix.stride(1)};
  matrix.layout = kernels::strided_layout(sizes, strides);
  return matrix;
}

// Views [.., k, n] as [.., n, k], or the other way round.
Tensor outputs_first(Tensor matrix) {
  static constexpr int kOrder[] = {0, 2, 1};
  if (matrix.dims() == 2) return transposed(matrix);
  matrix.layout = kernels::permuted_layout(matrix.layout, kOrder);
  return matrix;
}

void add_bias(Preparation& op, const Tensor& y, const std::optional<Tensor>& bias) {
  if (bias) op.step(binary_step(&op.node(), kernels::BinaryOp::kAdd, y, *bias, y));
}

// Returns a weight as it is multiplied: float8 is widened to `dtype`.
Tensor as_multiplied(Tensor weight, DType dtype) {
  weight.dtype = dtype;
  return weight;
}

// Returns how the library multiplies rounded rows; kNone if the rows are not to be rounded. With a gate, the result
// holds for both products.
Result<Float8Product> rounding_of(Preparation& op, const LayerInput& x, const DeviceLayer& layer) {
  if (op.activation_dtype() != DType::kFloat8E4M3FN || x.rows.size(0) <= kFewRows) return Float8Product::kNone;
  const std::optional<Tensor>& bias = layer.bias ? layer.bias : layer.gate_bias;
  return float8_product_of(op, x.rows.size(0), layer.weight, layer.y, bias);
}

// activation(x * weight^T + bias), by the library or, with canonical ranks, by kernels whose bits depend on nothing
// but the row, the weight and the number of rows.
Status add_product_of_many_rows(Preparation& op, LayerInput& x, const DeviceLayer& layer) {
  const Tensor& to = layer.y;
  ProductOptions options{.bias = layer.bias, .choice = choice_for(op, layer.weight)};
  ACCORD_ASSIGN_OR_RETURN(const Float8Product kind, rounding_of(op, x, layer));
  if (op.is_canonical()) {
    ACCORD_RETURN_IF_ERROR(add_canonical_product(op, {as_groups(x.rows), as_groups(layer.weight), as_groups(to)}));
    add_bias(op, to, layer.bias);
  } else if (kind != Float8Product::kNone) {
    if (!x.rounded) {
      ACCORD_ASSIGN_OR_RETURN(x.rounded, round_rows(op, x.rows));
    }
    ACCORD_RETURN_IF_ERROR(add_float8_product(op, kind, *x.rounded, layer.weight, to, layer.bias));
  } else {
    if (layer.activation == Activation::kRelu) options.epilogue = Epilogue::kRelu;
    if (layer.activation == Activation::kGeluTanh) options.epilogue = Epilogue::kGeluTanh;
    if (options.bias || options.epilogue != Epilogue::kNone) {
      const Tensor weight = as_multiplied(layer.weight, x.rows.dtype);
      ACCORD_ASSIGN_OR_RETURN(const bool fuses, has_library_product(op, x.rows, transposed(weight), to, options));
      if (!fuses) options = {.choice = options.choice};
    }
    ACCORD_RETURN_IF_ERROR(is_float8(layer.weight)
                               ? add_widened_product(op, x.rows, layer.weight, to, options)
                               : add_library_product(op, x.rows, transposed(layer.weight), to, options));
    if (!options.bias) add_bias(op, to, layer.bias);
  }
  const auto activation = unary_of(layer.activation);
  if (activation && options.epilogue == Epilogue::kNone) op.step(unary_step(*activation, to, to));
  return Status();
}

// Views columns [first, first + count) of a matrix.
Tensor columns_of(Tensor matrix, std::int64_t first, std::int64_t count) {
  const Sizes sizes = {matrix.size(0), count}, strides = {matrix.stride(0), matrix.stride(1)};
  matrix.offset += first * static_cast<std::int64_t>(size_of(matrix.dtype));
  matrix.layout = kernels::strided_layout(sizes, strides);
  return matrix;
}

// Views two weights, or two outputs, of which the second follows the first, as one matrix. `dim`: the dimension in
// which they follow each other.
Tensor both(const Tensor& first, const Tensor& second, int dim) {
  Tensor all = first;
  Sizes sizes = first.sizes();
  sizes[static_cast<std::size_t>(dim)] += second.size(dim);
  const Sizes strides = {first.stride(0), first.stride(1)};
  all.layout = kernels::strided_layout(sizes, strides);
  return all;
}

Status add_products(Preparation& op, LayerInput& x, const DeviceLayer& layer);

// The two products of a gated layer, then the gate. Weights that follow each other are multiplied at once.
Status add_gated_products(Preparation& op, LayerInput& x, const DeviceLayer& layer) {
  const Tensor& y = layer.y;
  const std::int64_t outputs = y.size(1);
  if (follows(*layer.gate, layer.weight) && !layer.bias && !layer.gate_bias && !op.is_canonical()) {
    ACCORD_ASSIGN_OR_RETURN(const Tensor columns, op.scratch(y.dtype, {y.size(0), 2 * outputs}));
    ACCORD_RETURN_IF_ERROR(
        add_product_of_many_rows(op, x, {both(layer.weight, *layer.gate, 0), {}, {}, {}, Activation::kNone, columns}));
    op.step(gate_step(unary_of(layer.activation), columns_of(columns, outputs, outputs),
                      columns_of(columns, 0, outputs), y));
    return Status();
  }
  ACCORD_ASSIGN_OR_RETURN(const Tensor gates, op.scratch(y.dtype, y.sizes()));
  ACCORD_RETURN_IF_ERROR(add_products(op, x, {*layer.gate, {}, layer.gate_bias, {}, Activation::kNone, gates}));
  ACCORD_RETURN_IF_ERROR(add_products(op, x, {layer.weight, {}, layer.bias, {}, Activation::kNone, y}));
  op.step(gate_step(unary_of(layer.activation), gates, y, y));
  return Status();
}

Result<OwnKernel> kernel_of(Preparation& op, const LayerInput& x, const DeviceLayer& layer) {
  ACCORD_ASSIGN_OR_RETURN(const Float8Product kind, rounding_of(op, x, layer));
  return kind == Float8Product::kNone ? own_kernel_of(op, x.rows, layer) : OwnKernel::kNone;
}

Status add_products(Preparation& op, LayerInput& x, const DeviceLayer& layer) {
  ACCORD_ASSIGN_OR_RETURN(const OwnKernel kernel, kernel_of(op, x, layer));
  if (kernel != OwnKernel::kNone) {
    add_own_products(op, kernel, x.rows, std::span(&layer, 1));
    return Status();
  }
  return layer.gate ? add_gated_products(op, x, layer) : add_product_of_many_rows(op, x, layer);
}

Result<DeviceLayer> device_layer(Preparation& op, const LayerInput& x, const LinearLayer& given) {
  const Tensor& weight = given.weight.tensor;
  DeviceLayer layer{weight, {}, {}, {}, given.activation, {}};
  if (given.gate) layer.gate = given.gate->tensor;
  for (const Tensor& matrix : {weight, layer.gate.value_or(weight)}) {
    if (x.rows.dtype != matrix.dtype && !is_float8(matrix))
      return op.unsupported("its input and its weight have different dtypes");
  }
  ACCORD_ASSIGN_OR_RETURN(layer.bias, bias_as(op, given.bias, given.y.dtype));
  ACCORD_ASSIGN_OR_RETURN(layer.gate_bias, bias_as(op, given.gate_bias, given.y.dtype));
  const std::optional<Rows> rows = as_rows(given.y.layout);
  if (!rows) return op.unsupported("the rows of its output have gaps inside");
  layer.y = as_matrix(given.y, {x.rows.size(0), weight.size(0), rows->rows == 1 ? weight.size(0) : rows->stride});
  return layer;
}

// Layers for the library, or for canonical kernels, from `first` on: the layer itself, or several whose outputs are
// columns of one tensor. Returns how many layers were added.
Result<std::size_t> add_layers_from(Preparation& op, LayerInput& x, std::span<const DeviceLayer> layers) {
  DeviceLayer all = layers.front();
  std::size_t count = 1;
  for (; count < layers.size(); ++count) {
    const DeviceLayer& next = layers[count];
    const auto width = all.y.size(1) * static_cast<std::int64_t>(size_of(all.y.dtype));
    if (!follows(next.weight, all.weight) || next.y.storage != all.y.storage || next.y.offset != all.y.offset + width)
      break;
    all.weight = both(all.weight, next.weight, 0);
    all.y = both(all.y, next.y, 1);
  }
  ACCORD_RETURN_IF_ERROR(add_products(op, x, all));
  return count;
}

Status add_linears(Preparation& op, const LinearsCall& call) {
  LayerInput x{as_matrix(call.x.tensor, call.x.rows), {}};
  std::map<std::pair<OwnKernel, DType>, std::vector<DeviceLayer>> own;
  std::vector<DeviceLayer> others;
  for (const LinearLayer& given : call.layers) {
    if (given.y.count() == 0) continue;
    ACCORD_ASSIGN_OR_RETURN(const DeviceLayer layer, device_layer(op, x, given));
    if (given.pieces) {
      ACCORD_RETURN_IF_ERROR(add_canonical_pieces(op, {x.rows, layer.weight, layer.y}, *given.pieces));
      continue;
    }
    ACCORD_ASSIGN_OR_RETURN(const OwnKernel kernel, kernel_of(op, x, layer));
    (kernel == OwnKernel::kNone ? others : own[{kernel, layer.weight.dtype}]).push_back(layer);
  }
  for (const auto& [alike, layers] : own) add_own_products(op, alike.first, x.rows, layers);
  for (std::span<const DeviceLayer> left = others; !left.empty();) {
    ACCORD_ASSIGN_OR_RETURN(const std::size_t count, add_layers_from(op, x, left));
    left = left.subspan(count);
  }
  return Status();
}

Status add_matrix_product(Preparation& op, const MatrixProductCall& call) {
  const Tensor &a = call.a, &b = call.b.tensor, &c = call.c;
  ProductOptions options{.choice = choice_for(op, b)};
  options.alpha = static_cast<float>(call.alpha);
  if (call.bias && call.bias->dims() == 1 && call.bias->size(0) == c.size(1) && call.beta == 1.0) {
    ACCORD_ASSIGN_OR_RETURN(options.bias, bias_as(op, call.bias, c.dtype));
  } else if (call.bias) {
    op.step(convert_step(*call.bias, c));
    options.beta = static_cast<float>(call.beta);
  }
  if (!op.is_canonical()) return add_library_product(op, a, b, c, options);
  if (options.alpha != 1.0F || options.beta != 0.0F) {
    return op.unsupported("with canonical ranks there is no kernel for alpha, beta and a bias of more than one row");
  }
  ACCORD_RETURN_IF_ERROR(call.pieces
                             ? add_canonical_pieces(op, {a, transposed(b), c}, *call.pieces)
                             : add_canonical_product(op, {as_groups(a), as_groups(outputs_first(b)), as_groups(c)}));
  add_bias(op, c, options.bias);
  return Status();
}

// Views [rows, heads, dim] as [heads, rows, dim].
Tensor by_heads(Tensor tensor) {
  static constexpr int kOrder[] = {1, 0, 2};
  tensor.layout = kernels::permuted_layout(tensor.layout, kOrder);
  return tensor;
}

// Heads are a batch of matrices. The library writes them where they belong; canonical kernels need them without gaps.
Status add_head_linear(Preparation& op, const HeadLinearCall& call) {
  const Tensor x = by_heads(call.x), y = by_heads(call.y);
  if (!op.is_canonical())
    return add_library_product(op, x, outputs_first(call.weight), y, {.choice = choice_for(op, call.weight)});
  ACCORD_ASSIGN_OR_RETURN(const Tensor made, op.scratch(y.dtype, y.sizes()));
  ACCORD_RETURN_IF_ERROR(add_canonical_product(op, {x, call.weight, made}));
  op.step(convert_step(made, y));
  return Status();
}

}  // namespace

void set_matrix_steps(StepTable& table) {
  table.set<LinearsCall>(add_linears);
  table.set<MatrixProductCall>(add_matrix_product);
  table.set<HeadLinearCall>(add_head_linear);
}

}  // namespace accord::engine::gpu
