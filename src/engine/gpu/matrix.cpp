// Matrix products on GPUs. Weights are row-major, like everything else: weights that the CPU packs are plain
// tensors here. Products of few rows go to the kernel that reads the weight once, others to the device's library.
// Operations after a product that the library does not support are steps of their own.
//
// That kernel, and another one for somewhat more rows, read float8 weights as they are. The library multiplies float8
// weights with rows of float8 if it has a kernel for that; otherwise they are first widened to the dtype of the rows.
#include "engine/ops/matrix.hpp"

#include "engine/gpu/canonical_products.hpp"
#include "engine/gpu/elementwise.hpp"
#include "engine/gpu/float8_products.hpp"
#include "engine/gpu/kernels/some_rows_kernel.hpp"
#include "engine/gpu/library_product.hpp"
#include "engine/gpu/run.hpp"
#include "engine/gpu/steps.hpp"

namespace accord::engine::gpu {
namespace {

using device::Epilogue;
using kernels::UnaryOp;

// Views a tensor as [rows, width].
Tensor as_matrix(Tensor tensor, const Rows& rows) {
  const Sizes sizes = {rows.rows, rows.width};
  const Sizes strides = {rows.stride, 1};
  tensor.layout = kernels::strided_layout(sizes, strides);
  return tensor;
}

/// A LinearLayer whose biases have the dtype of the outputs.
struct Layer {
  Tensor weight;
  std::optional<Tensor> gate, bias, gate_bias;
  std::optional<UnaryOp> activation;
};

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

// Views [.., k, n] as [.., n, k].
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
Result<Float8Product> rounding_of(Preparation& op, const LayerInput& x, const Layer& layer, const Tensor& to) {
  if (op.activation_dtype() != DType::kFloat8E4M3FN) return Float8Product::kNone;
  const std::optional<Tensor>& bias = layer.bias ? layer.bias : layer.gate_bias;
  return float8_product_of(op, x.rows.size(0), layer.weight, to, bias);
}

// activation(x * weight^T + bias), by the library or, with canonical ranks, by kernels whose bits depend on nothing
// but the row, the weight and the number of rows.
Status add_product_of_many_rows(Preparation& op, LayerInput& x, const Layer& layer, const Tensor& to) {
  ProductOptions options{.bias = layer.bias};
  ACCORD_ASSIGN_OR_RETURN(const Float8Product kind, rounding_of(op, x, layer, to));
  if (op.is_canonical()) {
    ACCORD_RETURN_IF_ERROR(add_canonical_product(op, {as_groups(x.rows), as_groups(layer.weight), as_groups(to)}));
    add_bias(op, to, layer.bias);
  } else if (kind != Float8Product::kNone) {
    if (!x.rounded) {
      ACCORD_ASSIGN_OR_RETURN(x.rounded, round_rows(op, x.rows));
    }
    ACCORD_RETURN_IF_ERROR(add_float8_product(op, kind, *x.rounded, layer.weight, to, layer.bias));
  } else {
    if (layer.activation == UnaryOp::kRelu) options.epilogue = Epilogue::kRelu;
    if (layer.activation == UnaryOp::kGeluTanh) options.epilogue = Epilogue::kGeluTanh;
    if (options.bias || options.epilogue != Epilogue::kNone) {
      const Tensor weight = as_multiplied(layer.weight, x.rows.dtype);
      ACCORD_ASSIGN_OR_RETURN(const bool fuses, has_library_product(op, x.rows, transposed(weight), to, options));
      if (!fuses) options = {};
    }
    ACCORD_RETURN_IF_ERROR(is_float8(layer.weight)
                               ? add_widened_product(op, x.rows, layer.weight, to, options)
                               : add_library_product(op, x.rows, transposed(layer.weight), to, options));
    if (!options.bias) add_bias(op, to, layer.bias);
  }
  if (layer.activation && options.epilogue == Epilogue::kNone) op.step(unary_step(*layer.activation, to, to));
  return Status();
}

template <int kRows>
Status launch_rows(const DeviceRun& run, const FewRowsCall& call) {
  constexpr std::int64_t kOutputsOfBlock = 8;  // one per warp
  const std::int64_t blocks = ceil_divide(call.n, kOutputsOfBlock);
  if (call.weight.scales != nullptr)
    return launch_blocks(run, FewRowsProduct<kRows, WeightKind::kFloat8>{call}, blocks);
  return launch_blocks(run, FewRowsProduct<kRows, WeightKind::kSameAsRows>{call}, blocks);
}

Status launch_few_rows(const DeviceRun& run, const FewRowsCall& call) {
  if (call.m == 1) return launch_rows<1>(run, call);
  if (call.m == 2) return launch_rows<2>(run, call);
  return call.m <= 4 ? launch_rows<4>(run, call) : launch_rows<kFewRows>(run, call);
}

template <DType kDType>
Status launch_some_rows(const DeviceRun& run, const FewRowsCall& call) {
  const auto launch = [&](const auto& kernel) {
    return launch_blocks(run, kernel, kernel.blocks(), kernel.kSharedBytes);
  };
  if (call.m <= 16) return launch(SomeRowsProduct<kDType, 1>{call});
  return call.m <= 32 ? launch(SomeRowsProduct<kDType, 2>{call}) : launch(SomeRowsProduct<kDType, 4>{call});
}

// Launches the kernel for this number of rows.
Status launch_product(const DeviceRun& run, const FewRowsCall& call) {
  if (call.m <= kFewRows) return launch_few_rows(run, call);
  return call.dtype == DType::kBFloat16 ? launch_some_rows<DType::kBFloat16>(run, call)
                                        : launch_some_rows<DType::kFloat16>(run, call);
}

Status add_product_by_kernel(Preparation& op, const Tensor& x, const Layer& layer, const Tensor& y) {
  FewRowsCall kernel;
  kernel.dtype = x.dtype;
  kernel.m = x.size(0);
  kernel.n = layer.weight.size(0);
  kernel.k = layer.weight.size(1);
  kernel.x_row_bytes = x.stride(0) * static_cast<std::int64_t>(size_of(x.dtype));
  kernel.has_activation = layer.activation.has_value();
  kernel.activation = layer.activation.value_or(UnaryOp::kRelu);
  kernel.y_dtype = y.dtype;
  op.step([=](const Execution& execution) {
    const auto address = [&](const std::optional<Tensor>& tensor) -> std::byte* {
      return tensor ? execution.address(*tensor) : nullptr;
    };
    FewRowsCall placed = kernel;
    placed.x = execution.address(x);
    placed.weight = weight_operand(execution, layer.weight);
    if (layer.gate) placed.gate = weight_operand(execution, *layer.gate);
    placed.bias = address(layer.bias);
    placed.gate_bias = address(layer.gate_bias);
    placed.y = execution.address(y);
    return launch_product(device_run(execution), placed);
  });
  return Status();
}

// Returns whether a kernel multiplies x with the weight, and the gate, as they are.
Result<bool> uses_own_kernel(Preparation& op, const LayerInput& input, const Layer& layer, const Tensor& y) {
  const Tensor& weight = layer.weight;
  const Tensor gate = layer.gate.value_or(weight);
  if (!weight.layout.is_contiguous() || !gate.layout.is_contiguous() || weight.dtype != gate.dtype) return false;
  const Tensor& x = input.rows;
  if (x.size(0) <= kFewRows) return true;
  if (x.size(0) > kSomeRows || x.dtype == DType::kFloat32 || !is_float8(weight) || weight.size(1) % 16 != 0)
    return false;
  ACCORD_ASSIGN_OR_RETURN(const Float8Product kind, rounding_of(op, input, layer, y));
  return kind == Float8Product::kNone;
}

// If the product with the gate must be separate, it comes first, into memory of its own. This is the case with many
// rows, and if only one of weight and gate is float8.
Status add_products(Preparation& op, LayerInput& x, const Layer& layer, const Tensor& y) {
  ACCORD_ASSIGN_OR_RETURN(const bool by_kernel, uses_own_kernel(op, x, layer, y));
  if (by_kernel) return add_product_by_kernel(op, x.rows, layer, y);
  if (!layer.gate) return add_product_of_many_rows(op, x, layer, y);
  ACCORD_ASSIGN_OR_RETURN(const Tensor gated, op.scratch(y.dtype, y.sizes()));
  ACCORD_RETURN_IF_ERROR(add_products(op, x, {*layer.gate, {}, layer.gate_bias, {}, {}}, gated));
  ACCORD_RETURN_IF_ERROR(add_products(op, x, {layer.weight, {}, layer.bias, {}, {}}, y));
  op.step(gate_step(layer.activation, gated, y, y));
  return Status();
}

Status add_layer(Preparation& op, LayerInput& x, const LinearLayer& given) {
  const Tensor& weight = given.weight.tensor;
  Layer layer{weight, {}, {}, {}, unary_of(given.activation)};
  if (given.gate) layer.gate = given.gate->tensor;
  for (const Tensor& matrix : {weight, layer.gate.value_or(weight)}) {
    if (x.rows.dtype != matrix.dtype && !is_float8(matrix))
      return op.unsupported("its input and its weight have different dtypes");
  }
  ACCORD_ASSIGN_OR_RETURN(layer.bias, bias_as(op, given.bias, given.y.dtype));
  ACCORD_ASSIGN_OR_RETURN(layer.gate_bias, bias_as(op, given.gate_bias, given.y.dtype));
  const Tensor y = as_matrix(given.y, {x.rows.size(0), weight.size(0), weight.size(0)});
  if (y.count() == 0) return Status();
  return given.pieces ? add_canonical_pieces(op, {x.rows, weight, y}, *given.pieces) : add_products(op, x, layer, y);
}

Status add_linears(Preparation& op, const LinearsCall& call) {
  LayerInput x{as_matrix(call.x.tensor, call.x.rows), {}};
  for (const LinearLayer& layer : call.layers) ACCORD_RETURN_IF_ERROR(add_layer(op, x, layer));
  return Status();
}

Status add_matrix_product(Preparation& op, const MatrixProductCall& call) {
  const Tensor &a = call.a, &b = call.b.tensor, &c = call.c;
  ProductOptions options;
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

}  // namespace

void set_matrix_steps(StepTable& table) {
  table.set<LinearsCall>(add_linears);
  table.set<MatrixProductCall>(add_matrix_product);
}

}  // namespace accord::engine::gpu
