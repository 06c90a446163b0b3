// Matrix products. Products with weights of the package use the packed product and see 16-bit floats as they are.
// Products of computed matrices use the plain GEMM, in float32.
#include <algorithm>

#include "engine/ops/promotion.hpp"
#include "engine/ops/op_registry.hpp"
#include "engine/host/packed_product.hpp"
#include "kernels/gemm.hpp"

namespace accord::engine {
namespace {

using kernels::Activation;

Result<Activation> activation_of(Preparation& op) {
  static constexpr Activation kinds[] = {Activation::kNone, Activation::kGeluErf, Activation::kGeluTanh,
                                         Activation::kRelu, Activation::kSilu,    Activation::kTanh};
  ACCORD_ASSIGN_OR_RETURN(const int kind,
                          op.choice("activation", {"none", "gelu", "gelu_tanh", "relu", "silu", "tanh"}));
  return kinds[kind];
}

// [out], in float32.
Result<std::optional<Tensor>> as_bias(Preparation& op, const std::optional<Tensor>& bias, std::int64_t out) {
  if (!bias) return bias;
  ACCORD_RETURN_IF_ERROR(op.require(*bias, {DType::kFloat32, DType::kBFloat16, DType::kFloat16}));
  if (bias->dims() != 1 || bias->size(0) != out)
    return op.corrupt("its bias is not of as many elements as its outputs");
  ACCORD_ASSIGN_OR_RETURN(const Tensor wide, op.converted(*bias, DType::kFloat32));
  ACCORD_ASSIGN_OR_RETURN(const Tensor whole, op.contiguous(wide));
  return std::optional<Tensor>(whole);
}

Result<std::optional<Tensor>> bias_of(Preparation& op, std::string_view name, std::int64_t out) {
  ACCORD_ASSIGN_OR_RETURN(const std::optional<Tensor> bias, op.maybe_tensor(name));
  return as_bias(op, bias, out);
}

Sizes with_last(Sizes sizes, std::int64_t last) {
  sizes.back() = last;
  return sizes;
}

/// c[i] = alpha * a[i] * b[i] + beta * c[i] over a batch. In a and b, two dimensions follow those of the batch.
struct PlainProduct {
  Tensor a;
  Tensor b;
  Tensor c;
  kernels::GemmCall call;  // everything but addresses
};

// GEMM needs matrices with contiguous rows, or (for b) contiguous columns, which is a transposed matrix.
bool has_contiguous_rows(const Tensor& tensor) {
  const int last = tensor.dims() - 1;
  return (tensor.size(last) == 1 || tensor.stride(last) == 1) && tensor.stride(last - 1) >= tensor.size(last);
}

bool has_contiguous_columns(const Tensor& tensor) {
  const int last = tensor.dims() - 1;
  return (tensor.size(last - 1) == 1 || tensor.stride(last - 1) == 1) && tensor.stride(last) >= tensor.size(last - 1);
}

std::int64_t row_stride_of(const Tensor& tensor) {
  return std::max(tensor.stride(tensor.dims() - 2), tensor.size(tensor.dims() - 1));
}

// Adds c = a * b for [batch.., m, k] and [batch.., k, n] with equal batch dimensions, or none.
Status add_plain_product(Preparation& op, Tensor a, Tensor b, const Tensor& c, float alpha, float beta) {
  for (const DType dtype : {a.dtype, b.dtype, c.dtype}) {
    if (dtype != DType::kFloat32) return op.unsupported("matrix products have a kernel for float32 only");
  }
  PlainProduct product;
  kernels::GemmCall& call = product.call;
  if (!has_contiguous_rows(a)) {
    ACCORD_ASSIGN_OR_RETURN(a, op.contiguous(a));
  }
  if (!has_contiguous_rows(b) && has_contiguous_columns(b)) {
    call.transpose_b = kernels::Transpose::kYes;
  } else if (!has_contiguous_rows(b)) {
    ACCORD_ASSIGN_OR_RETURN(b, op.contiguous(b));
  }
  const bool transposed = call.transpose_b == kernels::Transpose::kYes;
  call.m = a.size(a.dims() - 2);
  call.k = a.size(a.dims() - 1);
  call.n = b.size(b.dims() - 1);
  call.a_row_stride = row_stride_of(a);
  call.b_row_stride = transposed ? std::max(b.stride(b.dims() - 1), call.k) : row_stride_of(b);
  call.c_row_stride = row_stride_of(c);
  call.alpha = alpha;
  call.beta = beta;
  if (c.dims() == 3) {
    call.batch = c.size(0);
    call.a_batch_stride = a.stride(0);
    call.b_batch_stride = b.stride(0);
    call.c_batch_stride = c.stride(0);
  }
  product.a = a;
  product.b = b;
  product.c = c;
  op.step([product](const Execution& execution) {
    const int parts = product.call.batch > 1 ? execution.pool.threads() : 1;
    return execution.pool.run(parts, [&](int part) {
      const PartRange range = part_range(product.call.batch, 1, part, parts);
      kernels::GemmCall mine = product.call;
      mine.batch = range.last - range.first;
      if (mine.batch == 0) return Status();
      mine.a = execution.data<const float>(product.a) + range.first * mine.a_batch_stride;
      mine.b = execution.data<const float>(product.b) + range.first * mine.b_batch_stride;
      mine.c = execution.data<float>(product.c) + range.first * mine.c_batch_stride;
      return kernels::gemm(mine);
    });
  });
  return Status();
}

// A linear layer whose weight is computed by the model.
Status prepare_plain_linear(Preparation& op) {
  op.widen();
  ACCORD_ASSIGN_OR_RETURN(const Tensor input, op.tensor("input"));
  ACCORD_ASSIGN_OR_RETURN(Tensor weight, op.tensor("weight"));
  if (op.has("activation")) return op.unsupported("an activation has a kernel with weights of the package only");
  if (weight.dims() != 2 || input.dims() == 0 || input.size(input.dims() - 1) != weight.size(1)) {
    return op.corrupt("its input is not as wide as its weight");
  }
  ACCORD_ASSIGN_OR_RETURN(const RowTensor x, rows_of(op, input));
  ACCORD_ASSIGN_OR_RETURN(const std::optional<Tensor> bias, bias_of(op, "bias", weight.size(0)));
  static constexpr int kTransposed[] = {1, 0};
  weight.layout = kernels::permuted_layout(weight.layout, kTransposed);
  ACCORD_ASSIGN_OR_RETURN(Tensor y, op.make(0, with_last(input.sizes(), weight.size(1))));
  Tensor rows = x.tensor;
  const Sizes x_sizes = {x.rows.rows, x.rows.width};
  const Sizes x_strides = {x.rows.stride, 1};
  rows.layout = kernels::strided_layout(x_sizes, x_strides);
  const Sizes y_sizes = {x.rows.rows, weight.size(1)};
  y.layout = kernels::contiguous_layout(y_sizes);
  ACCORD_RETURN_IF_ERROR(add_plain_product(op, rows, weight, y, 1.0F, 0.0F));
  if (bias) add_binary(op, kernels::BinaryOp::kAdd, y, *bias, y);
  return Status();
}

// Computes the product in pieces if the node says so.
Status add_product(Preparation& op, const Tensor& x, const PackedProduct& product) {
  if (!op.has("pieces")) return add_packed_products(op, x, {product});
  ACCORD_ASSIGN_OR_RETURN(const std::int64_t pieces, op.integer("pieces"));
  return add_product_of_pieces(op, x, product, pieces);
}

Status prepare_linear(Preparation& op) {
  const kernels::PackedMatrix* weights = op.packed_linear("weight");
  if (weights == nullptr) return prepare_plain_linear(op);
  ACCORD_ASSIGN_OR_RETURN(const Tensor input, op.tensor("input"));
  if (input.dims() == 0 || input.size(input.dims() - 1) != weights->in()) {
    return op.corrupt("its input is not as wide as its weight");
  }
  PackedProduct product;
  product.weights = *weights;
  ACCORD_ASSIGN_OR_RETURN(product.bias, bias_of(op, "bias", weights->out()));
  ACCORD_ASSIGN_OR_RETURN(product.activation, activation_of(op));
  ACCORD_ASSIGN_OR_RETURN(product.y, op.make(0, with_last(input.sizes(), weights->out())));
  return add_product(op, input, product);
}

bool same_division(const kernels::PackedMatrix& a, const kernels::PackedMatrix& b) {
  return a.format == b.format && a.in_unit == b.in_unit && a.in_units == b.in_units && a.in_padding == b.in_padding;
}

// activation(input * gate^T) * (input * weight^T): one product, unless gate and weight are stored in different ways.
Status prepare_gated_linear(Preparation& op) {
  ACCORD_ASSIGN_OR_RETURN(const Tensor input, op.tensor("input"));
  const kernels::PackedMatrix* weights = op.packed_linear("weight");
  const kernels::PackedMatrix* gate = op.packed_linear("gate");
  if (weights == nullptr || gate == nullptr || input.dims() == 0 || input.size(input.dims() - 1) != weights->in() ||
      gate->in() != weights->in() || gate->out() != weights->out()) {
    return op.corrupt("its input, its weight and its gate do not fit");
  }
  PackedProduct product, first;
  product.weights = *weights;
  first.weights = *gate;
  ACCORD_ASSIGN_OR_RETURN(product.bias, bias_of(op, "bias", weights->out()));
  ACCORD_ASSIGN_OR_RETURN(first.bias, bias_of(op, "gate_bias", weights->out()));
  ACCORD_ASSIGN_OR_RETURN(first.activation, activation_of(op));
  const Sizes sizes = with_last(input.sizes(), weights->out());
  ACCORD_ASSIGN_OR_RETURN(product.y, op.make(0, sizes));
  if (same_division(*weights, *gate) && weights->out_unit == gate->out_unit && weights->out_units == gate->out_units) {
    product.gate = first.weights;
    product.gate_bias = first.bias;
    product.activation = first.activation;
    return add_packed_products(op, input, {product});
  }
  ACCORD_ASSIGN_OR_RETURN(first.y, op.scratch(product.y.dtype, sizes));
  ACCORD_RETURN_IF_ERROR(add_packed_products(op, input, {first}));
  ACCORD_RETURN_IF_ERROR(add_packed_products(op, input, {product}));
  add_binary(op, kernels::BinaryOp::kMul, product.y, first.y, product.y);
  return Status();
}

// Several layers with the same input. Layers whose weights are stored alike are one step.
Status prepare_linears(Preparation& op) {
  ACCORD_ASSIGN_OR_RETURN(const Tensor input, op.tensor("input"));
  const std::vector<kernels::PackedMatrix> weights = op.packed_linears("weights");
  ACCORD_ASSIGN_OR_RETURN(const std::vector<std::optional<Tensor>> biases, op.tensors("biases"));
  if (weights.empty() || weights.size() != op.outputs() || biases.size() != weights.size()) {
    return op.corrupt("its weights, biases and outputs do not fit");
  }
  std::vector<std::vector<PackedProduct>> alike;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    if (input.dims() == 0 || input.size(input.dims() - 1) != weights[i].in()) {
      return op.corrupt("its input is not as wide as its weights");
    }
    if (!op.output_used(i)) continue;
    PackedProduct product;
    product.weights = weights[i];
    ACCORD_ASSIGN_OR_RETURN(product.bias, as_bias(op, biases[i], weights[i].out()));
    ACCORD_ASSIGN_OR_RETURN(product.y, op.make(i, with_last(input.sizes(), weights[i].out())));
    const auto found = std::find_if(alike.begin(), alike.end(), [&](const std::vector<PackedProduct>& products) {
      return same_division(products.front().weights, product.weights);
    });
    (found == alike.end() ? alike.emplace_back() : *found).push_back(product);
  }
  for (const std::vector<PackedProduct>& products : alike) {
    ACCORD_RETURN_IF_ERROR(add_packed_products(op, input, products));
  }
  return Status();
}

// x [m, k] * weight [k, n] (+ bias), both computed.
Status prepare_plain_product(Preparation& op, std::string_view x_name, std::string_view bias_name) {
  op.widen();
  ACCORD_ASSIGN_OR_RETURN(const Tensor x, op.tensor(x_name));
  ACCORD_ASSIGN_OR_RETURN(const Tensor mat2, op.tensor("mat2"));
  if (x.dims() != 2 || mat2.dims() != 2 || x.size(1) != mat2.size(0)) return op.corrupt("its matrices do not fit");
  ACCORD_ASSIGN_OR_RETURN(const double alpha, op.real("alpha", 1.0));
  ACCORD_ASSIGN_OR_RETURN(const double beta, op.real("beta", 1.0));
  const Sizes sizes = {x.size(0), mat2.size(1)};
  ACCORD_ASSIGN_OR_RETURN(const Tensor y, op.make(0, sizes));
  const bool adds = !bias_name.empty() && beta != 0.0;  // as in PyTorch, NaN * 0 is not added
  if (adds) {
    ACCORD_ASSIGN_OR_RETURN(Tensor spread, op.tensor(bias_name));
    ACCORD_ASSIGN_OR_RETURN(spread.layout, kernels::broadcast_layout(spread.layout, sizes));
    add_binary_scalar(op, kernels::BinaryOp::kMul, spread, kernels::Scalar::of(beta), y);
  }
  return add_plain_product(op, x, mat2, y, static_cast<float>(alpha), adds ? 1.0F : 0.0F);
}

// The same, using the packed weight if the matrix is a weight of the package.
Status prepare_product(Preparation& op, std::string_view x_name, std::string_view bias_name) {
  const kernels::PackedMatrix* weights = op.packed_product("mat2");
  if (weights == nullptr) return prepare_plain_product(op, x_name, bias_name);
  ACCORD_ASSIGN_OR_RETURN(const Tensor x, op.tensor(x_name));
  if (x.dims() != 2 || x.size(1) != weights->in()) return op.corrupt("its matrices do not fit");
  ACCORD_ASSIGN_OR_RETURN(const double alpha, op.real("alpha", 1.0));
  ACCORD_ASSIGN_OR_RETURN(const double beta, op.real("beta", 1.0));
  if (alpha != 1.0 || beta != 1.0) return op.unsupported("alpha and beta have no kernel with a weight of the package");
  const Sizes sizes = {x.size(0), weights->out()};
  const bool with_bias = !bias_name.empty();
  ACCORD_ASSIGN_OR_RETURN(const std::optional<Tensor> bias,
                          with_bias ? op.maybe_tensor(bias_name) : Result<std::optional<Tensor>>(std::nullopt));
  const bool one_row = bias && bias->dims() == 1 && bias->size(0) == weights->out();
  PackedProduct product;
  product.weights = *weights;
  if (one_row) {
    ACCORD_ASSIGN_OR_RETURN(product.bias, bias_of(op, bias_name, weights->out()));
  }
  ACCORD_ASSIGN_OR_RETURN(product.y, op.make(0, sizes));
  ACCORD_RETURN_IF_ERROR(add_product(op, x, product));
  if (bias && !one_row) {
    ACCORD_ASSIGN_OR_RETURN(const Sizes both, broadcast_sizes(op, {product.y, *bias}));
    if (both != sizes) return op.corrupt("its bias does not broadcast to its output");
    add_binary(op, kernels::BinaryOp::kAdd, product.y, *bias, product.y);
  }
  return Status();
}

Status prepare_mm(Preparation& op) { return prepare_product(op, "self", ""); }
Status prepare_addmm(Preparation& op) { return prepare_product(op, "mat1", "self"); }

Status prepare_bmm(Preparation& op) {
  op.widen();
  ACCORD_ASSIGN_OR_RETURN(const Tensor a, op.tensor("self"));
  ACCORD_ASSIGN_OR_RETURN(const Tensor b, op.tensor("mat2"));
  if (a.dims() != 3 || b.dims() != 3 || a.size(0) != b.size(0) || a.size(2) != b.size(1)) {
    return op.corrupt("its matrices do not fit");
  }
  ACCORD_ASSIGN_OR_RETURN(const Tensor y, op.make(0, {a.size(0), a.size(1), b.size(2)}));
  return add_plain_product(op, a, b, y, 1.0F, 0.0F);
}

constexpr OpEntry kMatrixOps[] = {
    {"aten.linear.default", prepare_linear}, {"accord.linear", prepare_linear},
    {"aten.mm.default", prepare_mm},         {"aten.addmm.default", prepare_addmm},
    {"aten.bmm.default", prepare_bmm},       {"accord.gated_linear", prepare_gated_linear},
    {"accord.linears", prepare_linears},
};

}  // namespace

std::span<const OpEntry> matrix_ops() { return kMatrixOps; }

}  // namespace accord::engine
