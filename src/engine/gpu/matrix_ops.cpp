// Matrix products on devices. Weights are row-major, like everything else: weights that the CPU packs are plain
// tensors here. Products of few rows go to the kernel that reads the weight once, others to the device's library.
// Operations after a product that the library does not support are steps of their own.
//
// That kernel, and another one for somewhat more rows, read float8 weights as they are. The library multiplies float8
// weights with rows of float8 if it has a kernel for that; otherwise they are first widened to the dtype of the rows.
#include "engine/gpu/canonical_products.hpp"
#include "engine/gpu/run.hpp"
#include "engine/gpu/elementwise.hpp"
#include "engine/gpu/float8_products.hpp"
#include "engine/gpu/library_product.hpp"
#include "engine/gpu/kernels/some_rows_kernel.hpp"
#include "engine/ops/op_registry.hpp"
#include "kernels/activation.hpp"

namespace accord::engine {
namespace {

using device::Epilogue;
using kernels::UnaryOp;

Result<std::optional<UnaryOp>> activation_of(Preparation& op) {
  static constexpr std::optional<UnaryOp> kKinds[] = {std::nullopt,   UnaryOp::kGeluErf, UnaryOp::kGeluTanh,
                                                      UnaryOp::kRelu, UnaryOp::kSilu,    UnaryOp::kTanh};
  ACCORD_ASSIGN_OR_RETURN(const int kind,
                          op.choice("activation", {"none", "gelu", "gelu_tanh", "relu", "silu", "tanh"}));
  return kKinds[kind];
}

Sizes with_last(Sizes sizes, std::int64_t last) {
  sizes.back() = last;
  return sizes;
}

// Views a tensor as [rows, width].
Tensor as_matrix(Tensor tensor, const Rows& rows) {
  const Sizes sizes = {rows.rows, rows.width};
  const Sizes strides = {rows.stride, 1};
  tensor.layout = kernels::strided_layout(sizes, strides);
  return tensor;
}

/// y = activation(x * weight^T + bias), or, with a gate, activation(x * gate^T + gate_bias) * (x * weight^T + bias).
struct Layer {
  Tensor weight;  ///< [out, in], contiguous, like the gate
  std::optional<Tensor> gate, bias, gate_bias;
  std::optional<UnaryOp> activation;
};

/// The input of one layer, or of several.
struct Input {
  RowTensor x;
  Tensor rows;                         ///< x [m, k]
  std::optional<RoundedRows> rounded;  ///< set once a layer has multiplied with them
};

Result<Input> input_of(Preparation& op) {
  ACCORD_ASSIGN_OR_RETURN(const Tensor input, op.tensor("input"));
  if (input.dims() == 0) return op.corrupt("its input has no dimensions");
  ACCORD_ASSIGN_OR_RETURN(const RowTensor x, rows_of(op, input));
  return Input{x, as_matrix(x.tensor, x.rows), {}};
}

// Returns the bias [out] in the dtype of the outputs.
Result<std::optional<Tensor>> as_bias(Preparation& op, const std::optional<Tensor>& bias, std::int64_t out,
                                      DType dtype) {
  if (!bias) return bias;
  if (bias->dims() != 1 || bias->size(0) != out)
    return op.corrupt("its bias is not of as many elements as its outputs");
  ACCORD_ASSIGN_OR_RETURN(const Tensor same, op.converted(*bias, dtype));
  ACCORD_ASSIGN_OR_RETURN(const Tensor whole, op.contiguous(same));
  return std::optional<Tensor>(whole);
}

void add_unary_in_place(Preparation& op, UnaryOp kind, const Tensor& y) {
  Step step = unary_on_device(kind, y, y);
  op.step_always(step, [&] { return step; });
}

// Views a matrix as a group of one.
Tensor as_group(Tensor matrix) {
  const Sizes sizes = {1, matrix.size(0), matrix.size(1)};
  const Sizes strides = {0, matrix.stride(0), matrix.stride(1)};
  matrix.layout = kernels::strided_layout(sizes, strides);
  return matrix;
}

void add_bias(Preparation& op, const Tensor& y, const std::optional<Tensor>& bias) {
  if (!bias) return;
  Step step = binary_on_device(&op.node(), kernels::BinaryOp::kAdd, y, *bias, y);
  op.step_always(step, [&] { return step; });
}

// Returns a weight as it is multiplied: float8 is widened to `dtype`.
Tensor as_multiplied(Tensor weight, DType dtype) {
  weight.dtype = dtype;
  return weight;
}

// Returns how the library multiplies rounded rows; kNone if the rows are not to be rounded. With a gate, the result
// holds for both products.
Result<Float8Product> rounding_of(Preparation& op, const Input& x, const Layer& layer, const Tensor& to) {
  if (op.activation_dtype() != DType::kFloat8E4M3FN) return Float8Product::kNone;
  const std::optional<Tensor>& bias = layer.bias ? layer.bias : layer.gate_bias;
  return float8_product_of(op, x.rows.size(0), layer.weight, to, bias);
}

// activation(x * weight^T + bias), by the library or, with canonical ranks, by kernels whose bits depend on nothing
// but the row, the weight and the number of rows.
Status add_product_of_many_rows(Preparation& op, Input& x, const Layer& layer, const Tensor& to) {
  Extras extras{.bias = layer.bias};
  ACCORD_ASSIGN_OR_RETURN(const Float8Product kind, rounding_of(op, x, layer, to));
  if (op.is_canonical()) {
    ACCORD_RETURN_IF_ERROR(add_canonical_product(op, {as_group(x.rows), as_group(layer.weight), as_group(to)}));
    add_bias(op, to, layer.bias);
  } else if (kind != Float8Product::kNone) {
    if (!x.rounded) {
      ACCORD_ASSIGN_OR_RETURN(x.rounded, round_rows(op, x.rows));
    }
    ACCORD_RETURN_IF_ERROR(add_float8_product(op, kind, *x.rounded, layer.weight, to, layer.bias));
  } else {
    if (layer.activation == UnaryOp::kRelu) extras.epilogue = Epilogue::kRelu;
    if (layer.activation == UnaryOp::kGeluTanh) extras.epilogue = Epilogue::kGeluTanh;
    if (extras.bias || extras.epilogue != Epilogue::kNone) {
      const Tensor weight = as_multiplied(layer.weight, x.rows.dtype);
      ACCORD_ASSIGN_OR_RETURN(const bool fuses, has_library_product(op, x.rows, transposed(weight), to, extras));
      if (!fuses) extras = {};
    }
    ACCORD_RETURN_IF_ERROR(is_float8(layer.weight)
                               ? add_widened_product(op, x.rows, layer.weight, to, extras)
                               : add_library_product(op, x.rows, transposed(layer.weight), to, extras));
    if (!extras.bias) add_bias(op, to, layer.bias);
  }
  if (layer.activation && extras.epilogue == Epilogue::kNone) add_unary_in_place(op, *layer.activation, to);
  return Status();
}

template <int kRows>
Status launch_rows(const DeviceRun& run, const FewRowsCall& call) {
  constexpr std::int64_t kOutputsOfBlock = 8;  // one per warp
  const std::int64_t blocks = quotient_of_blocks(call.n, kOutputsOfBlock);
  if (call.weight.scales != nullptr)
    return launch_blocks(run, FewRowsProduct<kRows, WeightsAre::kFloat8>{call}, blocks);
  return launch_blocks(run, FewRowsProduct<kRows, WeightsAre::kAsRows>{call}, blocks);
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
  kernel.activates = layer.activation.has_value();
  kernel.activation = layer.activation.value_or(UnaryOp::kRelu);
  kernel.y_dtype = y.dtype;
  Step step = [=](const Execution& execution) {
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
  };
  op.step_always(step, [&] { return step; });
  return Status();
}

Status add_layer_of_pieces(Preparation& op, const Tensor& x, const Layer& layer, const Tensor& y) {
  ACCORD_ASSIGN_OR_RETURN(const std::int64_t pieces, op.integer("pieces"));
  if (layer.gate || layer.bias || layer.activation)
    return op.unsupported("sums of pieces have no gate, bias or activation");
  return add_canonical_pieces(op, {x, layer.weight, y}, pieces);
}

// Returns whether a kernel multiplies x with the weight, and the gate, as they are.
Result<bool> goes_to_kernel(Preparation& op, const Input& input, const Layer& layer, const Tensor& y) {
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
Status add_products(Preparation& op, Input& x, const Layer& layer, const Tensor& y) {
  ACCORD_ASSIGN_OR_RETURN(const bool by_kernel, goes_to_kernel(op, x, layer, y));
  if (by_kernel) return add_product_by_kernel(op, x.rows, layer, y);
  if (!layer.gate) return add_product_of_many_rows(op, x, layer, y);
  ACCORD_ASSIGN_OR_RETURN(const Tensor gated, op.scratch(y.dtype, y.sizes()));
  ACCORD_RETURN_IF_ERROR(add_products(op, x, {*layer.gate, {}, layer.gate_bias, {}, layer.activation}, gated));
  ACCORD_RETURN_IF_ERROR(add_products(op, x, {layer.weight, {}, layer.bias, {}, {}}, y));
  Step step = binary_on_device(&op.node(), kernels::BinaryOp::kMul, y, gated, y);
  op.step_always(step, [&] { return step; });
  return Status();
}

// Adds the steps that compute output `output` from the layer.
Status add_layer(Preparation& op, Input& input, Layer layer, std::size_t output) {
  const Tensor& weight = layer.weight;
  const RowTensor& x = input.x;
  if (weight.dims() != 2 || x.rows.width != weight.size(1)) return op.corrupt("its input is not as wide as its weight");
  for (const Tensor& matrix : {weight, layer.gate.value_or(weight)}) {
    if (x.tensor.dtype != matrix.dtype && !is_float8(matrix))
      return op.unsupported("its input is of another dtype than its weight");
  }
  ACCORD_ASSIGN_OR_RETURN(const Tensor y, op.make(output, with_last(x.tensor.sizes(), weight.size(0))));
  ACCORD_ASSIGN_OR_RETURN(layer.bias, as_bias(op, layer.bias, weight.size(0), y.dtype));
  ACCORD_ASSIGN_OR_RETURN(layer.gate_bias, as_bias(op, layer.gate_bias, weight.size(0), y.dtype));
  const Tensor made = as_matrix(y, {x.rows.rows, weight.size(0), weight.size(0)});
  if (made.count() == 0) return Status();
  if (op.has("pieces")) return add_layer_of_pieces(op, input.rows, layer, made);
  return add_products(op, input, layer, made);
}

Status prepare_linear(Preparation& op) {
  ACCORD_ASSIGN_OR_RETURN(Input input, input_of(op));
  Layer layer;
  ACCORD_ASSIGN_OR_RETURN(layer.weight, op.tensor("weight"));
  ACCORD_ASSIGN_OR_RETURN(layer.bias, op.maybe_tensor("bias"));
  ACCORD_ASSIGN_OR_RETURN(layer.activation, activation_of(op));
  return add_layer(op, input, layer, 0);
}

Status prepare_gated_linear(Preparation& op) {
  ACCORD_ASSIGN_OR_RETURN(Input input, input_of(op));
  Layer layer;
  ACCORD_ASSIGN_OR_RETURN(layer.weight, op.tensor("weight"));
  ACCORD_ASSIGN_OR_RETURN(layer.gate, op.maybe_tensor("gate"));
  ACCORD_ASSIGN_OR_RETURN(layer.bias, op.maybe_tensor("bias"));
  ACCORD_ASSIGN_OR_RETURN(layer.gate_bias, op.maybe_tensor("gate_bias"));
  ACCORD_ASSIGN_OR_RETURN(layer.activation, activation_of(op));
  if (!layer.gate || layer.gate->sizes() != layer.weight.sizes()) {
    return op.corrupt("its weight and its gate do not fit");
  }
  return add_layer(op, input, layer, 0);
}

Status prepare_linears(Preparation& op) {
  ACCORD_ASSIGN_OR_RETURN(Input input, input_of(op));
  ACCORD_ASSIGN_OR_RETURN(const std::vector<std::optional<Tensor>> weights, op.tensors("weights"));
  ACCORD_ASSIGN_OR_RETURN(const std::vector<std::optional<Tensor>> biases, op.tensors("biases"));
  if (weights.size() != op.outputs() || biases.size() != weights.size()) {
    return op.corrupt("its weights, biases and outputs do not fit");
  }
  for (std::size_t i = 0; i < weights.size(); ++i) {
    if (!weights[i]) return op.corrupt("one of its weights is missing");
    if (!op.output_used(i)) continue;
    Layer layer;
    layer.weight = *weights[i];
    layer.bias = biases[i];
    ACCORD_RETURN_IF_ERROR(add_layer(op, input, layer, i));
  }
  return Status();
}

// x [m, k] * mat2 [k, n] (+ bias).
Status prepare_product(Preparation& op, std::string_view x_name, std::string_view bias_name) {
  ACCORD_ASSIGN_OR_RETURN(const Tensor x, op.tensor(x_name));
  ACCORD_ASSIGN_OR_RETURN(const Tensor mat2, op.tensor("mat2"));
  if (x.dims() != 2 || mat2.dims() != 2 || x.size(1) != mat2.size(0)) return op.corrupt("its matrices do not fit");
  Extras extras;
  ACCORD_ASSIGN_OR_RETURN(const double alpha, op.real("alpha", 1.0));
  ACCORD_ASSIGN_OR_RETURN(const double beta, op.real("beta", 1.0));
  extras.alpha = static_cast<float>(alpha);
  const Sizes sizes = {x.size(0), mat2.size(1)};
  ACCORD_ASSIGN_OR_RETURN(const Tensor y, op.make(0, sizes));
  if (!bias_name.empty()) {
    ACCORD_ASSIGN_OR_RETURN(Tensor bias, op.tensor(bias_name));
    if (bias.dims() == 1 && bias.size(0) == sizes[1] && beta == 1.0) {
      ACCORD_ASSIGN_OR_RETURN(extras.bias, as_bias(op, bias, sizes[1], y.dtype));
    } else {
      ACCORD_ASSIGN_OR_RETURN(bias.layout, kernels::broadcast_layout(bias.layout, sizes));
      Step step = convert_on_device(bias, y);
      op.step_always(step, [&] { return step; });
      extras.beta = static_cast<float>(beta);
    }
  }
  if (!op.is_canonical()) return add_library_product(op, x, mat2, y, extras);
  if (extras.alpha != 1.0F || extras.beta != 0.0F) {
    return op.unsupported("with canonical ranks there is no kernel for alpha, beta and a bias of more than one row");
  }
  ACCORD_ASSIGN_OR_RETURN(const std::int64_t pieces, op.integer("pieces", 1));
  ACCORD_RETURN_IF_ERROR(op.has("pieces")
                             ? add_canonical_pieces(op, {x, transposed(mat2), y}, pieces)
                             : add_canonical_product(op, {as_group(x), as_group(transposed(mat2)), as_group(y)}));
  add_bias(op, y, extras.bias);
  return Status();
}

Status prepare_mm(Preparation& op) { return prepare_product(op, "self", ""); }
Status prepare_addmm(Preparation& op) { return prepare_product(op, "mat1", "self"); }

Status prepare_bmm(Preparation& op) {
  ACCORD_ASSIGN_OR_RETURN(const Tensor a, op.tensor("self"));
  ACCORD_ASSIGN_OR_RETURN(const Tensor b, op.tensor("mat2"));
  if (a.dims() != 3 || b.dims() != 3 || a.size(0) != b.size(0) || a.size(2) != b.size(1)) {
    return op.corrupt("its matrices do not fit");
  }
  ACCORD_ASSIGN_OR_RETURN(const Tensor y, op.make(0, {a.size(0), a.size(1), b.size(2)}));
  if (!op.is_canonical()) return add_library_product(op, a, b, y, {});
  static constexpr int kOutputsFirst[] = {0, 2, 1};
  Tensor weight = b;
  weight.layout = kernels::permuted_layout(b.layout, kOutputsFirst);
  return add_canonical_product(op, {a, weight, y});
}

constexpr OpEntry kMatrixOps[] = {
    {"aten.linear.default", prepare_linear}, {"accord.linear", prepare_linear},
    {"aten.mm.default", prepare_mm},         {"aten.addmm.default", prepare_addmm},
    {"aten.bmm.default", prepare_bmm},       {"accord.gated_linear", prepare_gated_linear},
    {"accord.linears", prepare_linears},
};

}  // namespace

std::span<const OpEntry> device_matrix_ops() { return kMatrixOps; }

}  // namespace accord::engine
