// Matrix products on devices. Weights are row-major, as all else: what the CPU packs is a plain tensor here. Few rows go to the kernel that reads
// the weight once, others to the device's library; what that cannot do behind a product is a step of its own.
#include <algorithm>

#include "engine/device/device_run.hpp"
#include "engine/device/device_steps.hpp"
#include "engine/device/product_kernel.hpp"
#include "engine/runtime/op_registry.hpp"
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

/// c = a * b (+ bias), all but addresses. a and c have a row for each row of the result.
struct LibraryProduct {
  device::Product call;
  Tensor a, b, c;
  std::optional<Tensor> bias;

  Status run(const Execution& execution) const {
    device::Product placed = call;
    placed.a.data = execution.address(a);
    placed.b.data = execution.address(b);
    placed.c.data = execution.address(c);
    if (bias) placed.bias = execution.address(*bias);
    placed.workspace = execution.on_device->workspace;
    return execution.on_device->blas.multiply(placed, execution.on_device->device, execution.on_device->stream);
  }
};

bool has_contiguous_rows(const Tensor& tensor) {
  const int last = tensor.dims() - 1;
  return (tensor.size(last) == 1 || tensor.stride(last) == 1) && tensor.stride(last - 1) >= tensor.size(last);
}

bool has_contiguous_columns(const Tensor& tensor) {
  const int last = tensor.dims() - 1;
  return (tensor.size(last - 1) == 1 || tensor.stride(last - 1) == 1) && tensor.stride(last) >= tensor.size(last - 1);
}

device::Matrices matrices_of(const Tensor& tensor, int row_dim) {
  const int other = row_dim == tensor.dims() - 1 ? row_dim - 1 : row_dim + 1;
  return {nullptr, tensor.dtype, std::max(tensor.stride(row_dim), tensor.size(other)),
          tensor.dims() == 3 ? tensor.stride(0) : 0};
}

/// What else belongs to a product.
struct Extras {
  std::optional<Tensor> bias;  ///< [n] of c's dtype
  Epilogue epilogue = Epilogue::kNone;
  float alpha = 1.0F, beta = 0.0F;
};

// c = alpha a * b + beta c for [batch.., m, k] and [batch.., k, n] with equal, or no, batch dimensions.
Status add_library_product(Preparation& op, Tensor a, Tensor b, const Tensor& c, const Extras& extras) {
  ACCORD_RETURN_IF_ERROR(op.require(a, {DType::kFloat32, DType::kBFloat16, DType::kFloat16}));
  if (a.dtype != b.dtype || (c.dtype != a.dtype && c.dtype != DType::kFloat32)) {
    return op.unsupported("its matrices are of different dtypes");
  }
  if (!has_contiguous_rows(a)) {
    ACCORD_ASSIGN_OR_RETURN(a, op.contiguous(a));
  }
  LibraryProduct product;
  device::Product& call = product.call;
  if (!has_contiguous_rows(b) && has_contiguous_columns(b)) {
    call.second_is = device::SecondIs::kRows;
  } else {
    call.second_is = device::SecondIs::kColumns;
    if (!has_contiguous_rows(b)) {
      ACCORD_ASSIGN_OR_RETURN(b, op.contiguous(b));
    }
  }
  const int dims = a.dims();
  call.m = a.size(dims - 2);
  call.k = a.size(dims - 1);
  call.n = b.size(dims - 1);
  call.batch = dims == 3 ? a.size(0) : 1;
  call.a = matrices_of(a, dims - 2);
  call.b = matrices_of(b, call.second_is == device::SecondIs::kRows ? dims - 1 : dims - 2);
  call.c = matrices_of(c, dims - 2);
  call.alpha = extras.alpha;
  call.beta = extras.beta;
  call.epilogue = extras.epilogue;
  if (c.count() == 0) return Status();
  if (call.k == 0) return op.unsupported("a product over nothing");
  product.a = a;
  product.b = b;
  product.c = c;
  product.bias = extras.bias;
  const Step step = [product](const Execution& execution) { return product.run(execution); };
  op.step_always(step, [&] { return step; });
  return Status();
}

Sizes with_last(Sizes sizes, std::int64_t last) {
  sizes.back() = last;
  return sizes;
}

// As [rows, width].
Tensor as_matrix(Tensor tensor, const Rows& rows) {
  const Sizes sizes = {rows.rows, rows.width};
  const Sizes strides = {rows.stride, 1};
  tensor.layout = kernels::strided_layout(sizes, strides);
  return tensor;
}

Tensor transposed(Tensor matrix) {
  static constexpr int kOrder[] = {1, 0};
  matrix.layout = kernels::permuted_layout(matrix.layout, kOrder);
  return matrix;
}

/// y = activation(x * weight^T + bias), with a gate activation(x * gate^T + gate_bias) * (x * weight^T + bias).
struct Layer {
  Tensor weight;  ///< [out, in], contiguous, as the gate
  std::optional<Tensor> gate, bias, gate_bias;
  std::optional<UnaryOp> activation;
};

// [out] in the dtype of the outputs.
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
  const Step step = unary_on_device(kind, y, y);
  op.step_always(step, [&] { return step; });
}

// By the library: the gate's product comes first, into memory of its own.
Status add_layer_of_many_rows(Preparation& op, const Tensor& x, const Layer& layer, const Tensor& y) {
  const auto product = [&](const Tensor& weight, const std::optional<Tensor>& bias,
                           const std::optional<UnaryOp>& activation, const Tensor& to) {
    Extras extras{.bias = bias};
    if (activation == UnaryOp::kRelu) extras.epilogue = Epilogue::kRelu;
    if (activation == UnaryOp::kGeluTanh) extras.epilogue = Epilogue::kGeluTanh;
    ACCORD_RETURN_IF_ERROR(add_library_product(op, x, transposed(weight), to, extras));
    if (activation && extras.epilogue == Epilogue::kNone) add_unary_in_place(op, *activation, to);
    return Status();
  };
  if (!layer.gate) return product(layer.weight, layer.bias, layer.activation, y);
  ACCORD_ASSIGN_OR_RETURN(const Tensor gated, op.scratch(y.dtype, y.sizes()));
  ACCORD_RETURN_IF_ERROR(product(*layer.gate, layer.gate_bias, layer.activation, gated));
  ACCORD_RETURN_IF_ERROR(product(layer.weight, layer.bias, std::nullopt, y));
  const Step step = binary_on_device(&op.node(), kernels::BinaryOp::kMul, y, gated, y);
  op.step_always(step, [&] { return step; });
  return Status();
}

template <int kRows>
Status launch_rows(const DeviceRun& run, const FewRowsCall& call) {
  constexpr std::int64_t kOutputsOfBlock = 8;  // one for each warp
  return launch_blocks(run, FewRowsProduct<kRows>{call}, quotient_of_blocks(call.n, kOutputsOfBlock));
}

Status launch_few_rows(const DeviceRun& run, const FewRowsCall& call) {
  if (call.m == 1) return launch_rows<1>(run, call);
  if (call.m == 2) return launch_rows<2>(run, call);
  return call.m <= 4 ? launch_rows<4>(run, call) : launch_rows<kFewRows>(run, call);
}

Status add_layer_of_few_rows(Preparation& op, const Tensor& x, const Layer& layer, const Tensor& y) {
  FewRowsCall kernel;
  kernel.dtype = x.dtype;
  kernel.m = x.size(0);
  kernel.n = layer.weight.size(0);
  kernel.k = layer.weight.size(1);
  kernel.x_row_bytes = x.stride(0) * static_cast<std::int64_t>(size_of(x.dtype));
  kernel.activates = layer.activation.has_value();
  kernel.activation = layer.activation.value_or(UnaryOp::kRelu);
  kernel.y_dtype = y.dtype;
  const Step step = [=](const Execution& execution) {
    const auto address = [&](const std::optional<Tensor>& tensor) -> std::byte* {
      return tensor ? execution.address(*tensor) : nullptr;
    };
    FewRowsCall placed = kernel;
    placed.x = execution.address(x);
    placed.weight = execution.address(layer.weight);
    placed.gate = address(layer.gate);
    placed.bias = address(layer.bias);
    placed.gate_bias = address(layer.gate_bias);
    placed.y = execution.address(y);
    return launch_few_rows(*execution.on_device, placed);
  };
  op.step_always(step, [&] { return step; });
  return Status();
}

// Makes output `output` of the layer.
Status add_layer(Preparation& op, const Tensor& input, Layer layer, std::size_t output) {
  if (op.has("pieces")) return op.unsupported("sums of pieces have no kernel for GPUs");
  const Tensor& weight = layer.weight;
  if (weight.dims() != 2 || input.dims() == 0 || input.size(input.dims() - 1) != weight.size(1)) {
    return op.corrupt("its input is not as wide as its weight");
  }
  ACCORD_ASSIGN_OR_RETURN(const RowTensor x, rows_of(op, input));
  if (x.tensor.dtype != weight.dtype) return op.unsupported("its input is of another dtype than its weight");
  ACCORD_ASSIGN_OR_RETURN(const Tensor y, op.make(output, with_last(input.sizes(), weight.size(0))));
  ACCORD_ASSIGN_OR_RETURN(layer.bias, as_bias(op, layer.bias, weight.size(0), y.dtype));
  ACCORD_ASSIGN_OR_RETURN(layer.gate_bias, as_bias(op, layer.gate_bias, weight.size(0), y.dtype));
  const Tensor rows = as_matrix(x.tensor, x.rows);
  const Tensor made = as_matrix(y, {x.rows.rows, weight.size(0), weight.size(0)});
  if (made.count() == 0) return Status();
  const bool whole = weight.layout.is_contiguous() && (!layer.gate || layer.gate->layout.is_contiguous());
  return x.rows.rows <= kFewRows && whole ? add_layer_of_few_rows(op, rows, layer, made)
                                          : add_layer_of_many_rows(op, rows, layer, made);
}

Status prepare_linear(Preparation& op) {
  ACCORD_ASSIGN_OR_RETURN(const Tensor input, op.tensor("input"));
  Layer layer;
  ACCORD_ASSIGN_OR_RETURN(layer.weight, op.tensor("weight"));
  ACCORD_ASSIGN_OR_RETURN(layer.bias, op.maybe_tensor("bias"));
  ACCORD_ASSIGN_OR_RETURN(layer.activation, activation_of(op));
  return add_layer(op, input, layer, 0);
}

Status prepare_gated_linear(Preparation& op) {
  ACCORD_ASSIGN_OR_RETURN(const Tensor input, op.tensor("input"));
  Layer layer;
  ACCORD_ASSIGN_OR_RETURN(layer.weight, op.tensor("weight"));
  ACCORD_ASSIGN_OR_RETURN(layer.gate, op.maybe_tensor("gate"));
  ACCORD_ASSIGN_OR_RETURN(layer.bias, op.maybe_tensor("bias"));
  ACCORD_ASSIGN_OR_RETURN(layer.gate_bias, op.maybe_tensor("gate_bias"));
  ACCORD_ASSIGN_OR_RETURN(layer.activation, activation_of(op));
  if (!layer.gate || layer.gate->sizes() != layer.weight.sizes() || layer.gate->dtype != layer.weight.dtype) {
    return op.corrupt("its weight and its gate do not fit");
  }
  return add_layer(op, input, layer, 0);
}

Status prepare_linears(Preparation& op) {
  ACCORD_ASSIGN_OR_RETURN(const Tensor input, op.tensor("input"));
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
  if (op.has("pieces")) return op.unsupported("sums of pieces have no kernel for GPUs");
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
      const Step step = convert_on_device(bias, y);
      op.step_always(step, [&] { return step; });
      extras.beta = static_cast<float>(beta);
    }
  }
  return add_library_product(op, x, mat2, y, extras);
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
  return add_library_product(op, a, b, y, {});
}

constexpr OpEntry kTable[] = {
    {"aten.linear.default", prepare_linear}, {"accord.linear", prepare_linear},
    {"aten.mm.default", prepare_mm},         {"aten.addmm.default", prepare_addmm},
    {"aten.bmm.default", prepare_bmm},       {"accord.gated_linear", prepare_gated_linear},
    {"accord.linears", prepare_linears},
};

}  // namespace

std::span<const OpEntry> device_matrix_ops() { return kTable; }

}  // namespace accord::engine
