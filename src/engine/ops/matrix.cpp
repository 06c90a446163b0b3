// Linear layers and matrix products. They see 16-bit floats as they are.
#include "engine/ops/matrix.hpp"

#include <fmt/format.h>

#include <bit>

#include "engine/graph/ops.hpp"
#include "engine/ops/op_registry.hpp"
#include "engine/ops/promotion.hpp"

namespace accord::engine {
namespace {

using kernels::Activation;

Result<Activation> activation_of(const Preparation& op) {
  static constexpr Activation kKinds[] = {Activation::kNone, Activation::kGeluErf, Activation::kGeluTanh,
                                          Activation::kRelu, Activation::kSilu,    Activation::kTanh};
  ACCORD_ASSIGN_OR_RETURN(const int kind,
                          op.choice("activation", {"none", "gelu", "gelu_tanh", "relu", "silu", "tanh"}));
  return kKinds[kind];
}

Sizes with_last(Sizes sizes, std::int64_t last) {
  sizes.back() = last;
  return sizes;
}

Status require_real(const Preparation& op, const Tensor& tensor) {
  return op.require(tensor, {DType::kFloat32, DType::kBFloat16, DType::kFloat16});
}

Status check_bias(const Preparation& op, const std::optional<Tensor>& bias, std::int64_t out) {
  if (!bias) return Status();
  ACCORD_RETURN_IF_ERROR(require_real(op, *bias));
  if (bias->dims() == 1 && bias->size(0) == out) return Status();
  return op.corrupt("its bias does not have one element for each output");
}

// Returns the argument "pieces" of a product over `in` inputs. `is_plain`: nothing follows the product.
Result<std::optional<std::int64_t>> pieces_of(const Preparation& op, std::int64_t in, bool is_plain, const Tensor& y) {
  if (!op.has("pieces")) return std::optional<std::int64_t>();
  ACCORD_ASSIGN_OR_RETURN(const std::int64_t pieces, op.integer("pieces"));
  if (!is_plain || y.dtype != DType::kFloat32 || pieces < 1 ||
      !std::has_single_bit(static_cast<std::uint64_t>(pieces)) || in % pieces != 0) {
    return op.unsupported(fmt::format("these inputs cannot be summed in {} pieces", pieces));
  }
  return std::optional<std::int64_t>(pieces);
}

Result<MatrixWeight> linear_weight(Preparation& op, std::string_view name) {
  ACCORD_ASSIGN_OR_RETURN(const Tensor tensor, op.tensor(name));
  return MatrixWeight{tensor, op.packed_linear(name)};
}

Result<RowTensor> layer_input(Preparation& op) {
  ACCORD_ASSIGN_OR_RETURN(const Tensor input, op.tensor("input"));
  if (input.dims() == 0) return op.corrupt("its input is not as wide as its weight");
  return rows_of(op, input);
}

// Checks a layer whose weights and biases are set.
Status check(const Preparation& op, const RowTensor& x, const LinearLayer& layer) {
  const Tensor& weight = layer.weight.tensor;
  if (weight.dims() != 2 || x.rows.width != weight.size(1)) return op.corrupt("its input is not as wide as its weight");
  ACCORD_RETURN_IF_ERROR(check_bias(op, layer.bias, weight.size(0)));
  return check_bias(op, layer.gate_bias, weight.size(0));
}

// Creates the output of a checked layer.
Status complete(Preparation& op, const RowTensor& x, std::size_t output, LinearLayer& layer) {
  ACCORD_ASSIGN_OR_RETURN(layer.y, op.make(output, with_last(x.tensor.sizes(), layer.weight.tensor.size(0))));
  const bool is_plain = !layer.gate && !layer.bias && layer.activation == Activation::kNone;
  ACCORD_ASSIGN_OR_RETURN(layer.pieces, pieces_of(op, x.rows.width, is_plain, layer.y));
  return Status();
}

Status prepare_linear(Preparation& op) {
  LinearLayer layer;
  ACCORD_ASSIGN_OR_RETURN(const RowTensor x, layer_input(op));
  ACCORD_ASSIGN_OR_RETURN(layer.weight, linear_weight(op, "weight"));
  ACCORD_ASSIGN_OR_RETURN(layer.bias, op.maybe_tensor("bias"));
  ACCORD_ASSIGN_OR_RETURN(layer.activation, activation_of(op));
  ACCORD_RETURN_IF_ERROR(check(op, x, layer));
  ACCORD_RETURN_IF_ERROR(complete(op, x, 0, layer));
  if (op.is_canonical()) op.run_always();
  return op.add(LinearsCall{x, {layer}});
}

// activation(input * gate^T + gate_bias) * (input * weight^T + bias).
Status prepare_gated_linear(Preparation& op) {
  LinearLayer layer;
  ACCORD_ASSIGN_OR_RETURN(const RowTensor x, layer_input(op));
  ACCORD_ASSIGN_OR_RETURN(layer.weight, linear_weight(op, "weight"));
  ACCORD_ASSIGN_OR_RETURN(layer.gate, linear_weight(op, "gate"));
  ACCORD_ASSIGN_OR_RETURN(layer.bias, op.maybe_tensor("bias"));
  ACCORD_ASSIGN_OR_RETURN(layer.gate_bias, op.maybe_tensor("gate_bias"));
  ACCORD_ASSIGN_OR_RETURN(layer.activation, activation_of(op));
  if (layer.gate->tensor.sizes() != layer.weight.tensor.sizes())
    return op.corrupt("its input, its weight and its gate do not fit");
  ACCORD_RETURN_IF_ERROR(check(op, x, layer));
  ACCORD_RETURN_IF_ERROR(complete(op, x, 0, layer));
  if (op.is_canonical()) op.run_always();
  return op.add(LinearsCall{x, {layer}});
}

// Returns whether the device computes these layers as one product.
bool are_one_product(const Preparation& op, const LinearsCall& call) {
  const std::vector<LinearLayer>& layers = call.layers;
  if (layers.size() < 2 || layers.size() != op.outputs() || op.is_canonical()) return false;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    if (layers[i].bias || op.declared_dtype(i) != op.declared_dtype(0)) return false;
    if (i > 0 && !follows(layers[i].weight.tensor, layers[i - 1].weight.tensor)) return false;
  }
  return op.multiplies_together(call.x.rows.rows);
}

// Creates the outputs as columns of one tensor.
Status complete_together(Preparation& op, LinearsCall& call) {
  std::int64_t all = 0;
  for (const LinearLayer& layer : call.layers) all += layer.weight.tensor.size(0);
  ACCORD_ASSIGN_OR_RETURN(Tensor columns, op.scratch(op.declared_dtype(0), with_last(call.x.tensor.sizes(), all)));
  const auto last = static_cast<std::size_t>(columns.dims() - 1);
  for (std::size_t i = 0; i < call.layers.size(); ++i) {
    columns.layout.sizes[last] = call.layers[i].weight.tensor.size(0);
    call.layers[i].y = columns;
    op.alias(i, columns);
    columns.offset += columns.layout.sizes[last] * static_cast<std::int64_t>(size_of(columns.dtype));
  }
  return Status();
}

// Several layers with the same input.
Status prepare_linears(Preparation& op) {
  LinearsCall call;
  ACCORD_ASSIGN_OR_RETURN(call.x, layer_input(op));
  ACCORD_ASSIGN_OR_RETURN(const std::vector<std::optional<Tensor>> weights, op.tensors("weights"));
  ACCORD_ASSIGN_OR_RETURN(const std::vector<std::optional<Tensor>> biases, op.tensors("biases"));
  const std::vector<const kernels::PackedMatrix*> packed = op.packed_linears("weights");
  if (weights.empty() || weights.size() != op.outputs() || biases.size() != weights.size()) {
    return op.corrupt("its weights, biases and outputs do not fit");
  }
  std::vector<std::size_t> outputs;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    if (!weights[i]) return op.corrupt("one of its weights is missing");
    if (!op.output_used(i)) continue;
    LinearLayer layer;
    layer.weight = {*weights[i], packed[i]};
    layer.bias = biases[i];
    ACCORD_RETURN_IF_ERROR(check(op, call.x, layer));
    call.layers.push_back(layer);
    outputs.push_back(i);
  }
  if (are_one_product(op, call)) {
    ACCORD_RETURN_IF_ERROR(complete_together(op, call));
  } else {
    for (std::size_t i = 0; i < outputs.size(); ++i)
      ACCORD_RETURN_IF_ERROR(complete(op, call.x, outputs[i], call.layers[i]));
  }
  if (op.is_canonical()) op.run_always();
  return op.add(call);
}

// mm and addmm: a [m, k] * mat2 [k, n] (+ bias).
Status prepare_product(Preparation& op, std::string_view a_name, std::string_view bias_name) {
  MatrixProductCall call;
  ACCORD_ASSIGN_OR_RETURN(call.a, op.tensor(a_name));
  ACCORD_ASSIGN_OR_RETURN(call.b.tensor, op.tensor("mat2"));
  call.b.packed = op.packed_product("mat2");
  const Tensor &a = call.a, &b = call.b.tensor;
  if (a.dims() != 2 || b.dims() != 2 || a.size(1) != b.size(0)) return op.corrupt("its matrices do not fit");
  ACCORD_ASSIGN_OR_RETURN(call.alpha, op.real("alpha", 1.0));
  ACCORD_ASSIGN_OR_RETURN(call.beta, op.real("beta", 1.0));
  const Sizes sizes = {a.size(0), b.size(1)};
  ACCORD_ASSIGN_OR_RETURN(call.c, op.make(0, sizes));
  if (!bias_name.empty()) {
    ACCORD_ASSIGN_OR_RETURN(const Tensor bias, op.tensor(bias_name));
    ACCORD_RETURN_IF_ERROR(require_real(op, bias));
    ACCORD_ASSIGN_OR_RETURN(const Sizes both, broadcast_sizes(op, {call.c, bias}));
    if (both != sizes) return op.corrupt("its bias does not broadcast to its output");
    if (call.beta != 0.0) call.bias = bias;  // as in PyTorch, NaN * 0 is not added
  }
  ACCORD_ASSIGN_OR_RETURN(call.pieces, pieces_of(op, a.size(1), !call.bias, call.c));
  if (op.is_canonical()) op.run_always();
  return op.add(call);
}

Status prepare_mm(Preparation& op) { return prepare_product(op, "self", ""); }
Status prepare_addmm(Preparation& op) { return prepare_product(op, "mat1", "self"); }

Status prepare_bmm(Preparation& op) {
  MatrixProductCall call;
  ACCORD_ASSIGN_OR_RETURN(call.a, op.tensor("self"));
  ACCORD_ASSIGN_OR_RETURN(call.b.tensor, op.tensor("mat2"));
  const Tensor &a = call.a, &b = call.b.tensor;
  if (a.dims() != 3 || b.dims() != 3 || a.size(0) != b.size(0) || a.size(2) != b.size(1)) {
    return op.corrupt("its matrices do not fit");
  }
  ACCORD_ASSIGN_OR_RETURN(call.c, op.make(0, {a.size(0), a.size(1), b.size(2)}));
  if (op.is_canonical()) op.run_always();
  return op.add(call);
}

Status prepare_head_linear(Preparation& op) {
  HeadLinearCall call;
  ACCORD_ASSIGN_OR_RETURN(call.x, op.tensor("input"));
  ACCORD_ASSIGN_OR_RETURN(call.weight, op.tensor("weight"));
  call.packed = op.packed_experts("weight");
  const Tensor &x = call.x, &weight = call.weight;
  if (x.dims() != 3 || weight.dims() != 3 || x.size(1) != weight.size(0) || x.size(2) != weight.size(2))
    return op.corrupt("its input [rows, heads, in] and its weight [heads, out, in] do not fit");
  ACCORD_RETURN_IF_ERROR(require_real(op, x));
  if (x.stride(2) != 1 && x.size(2) != 1) {
    ACCORD_ASSIGN_OR_RETURN(call.x, op.contiguous(x));
  }
  ACCORD_ASSIGN_OR_RETURN(call.y, op.make(0, {x.size(0), x.size(1), weight.size(1)}));
  if (op.is_canonical()) op.run_always();
  return op.add(call);
}

constexpr OpEntry kMatrixOps[] = {
    {"aten.linear.default", prepare_linear}, {"accord.linear", prepare_linear},
    {"aten.mm.default", prepare_mm},         {"aten.addmm.default", prepare_addmm},
    {"aten.bmm.default", prepare_bmm},       {"accord.gated_linear", prepare_gated_linear},
    {"accord.linears", prepare_linears},     {kHeadLinear, prepare_head_linear},
};

}  // namespace

bool follows(const Tensor& second, const Tensor& first) {
  return first.dims() == 2 && second.dims() == 2 && first.size(1) == second.size(1) && first.dtype == second.dtype &&
         first.layout.is_contiguous() && second.layout.is_contiguous() && first.storage == second.storage &&
         second.offset == first.offset + static_cast<std::int64_t>(first.bytes());
}

std::span<const OpEntry> matrix_ops() { return kMatrixOps; }

}  // namespace accord::engine
