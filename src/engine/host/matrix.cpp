// Products with weights of the package use the packed product, which takes 16-bit floats as they are. Products of
// computed matrices use the plain GEMM, in float32.
#include "engine/ops/matrix.hpp"

#include <algorithm>

#include "engine/host/packed_product.hpp"
#include "engine/host/run.hpp"
#include "engine/host/steps.hpp"
#include "engine/ops/elementwise.hpp"
#include "engine/program/calls.hpp"
#include "kernels/gemm.hpp"

namespace accord::engine::host {
namespace {

using kernels::Activation;
using kernels::BinaryOp;

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

// Adds c = alpha * a * b + beta * c for [batch.., m, k] and [batch.., k, n] with equal batch dimensions, or none.
Status add_plain_product(Preparation& op, Tensor a, Tensor b, const Tensor& c, float alpha, float beta) {
  for (const DType dtype : {a.dtype, b.dtype, c.dtype}) {
    if (dtype != DType::kFloat32) return op.unsupported("matrix products have a kernel only for float32");
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
    ThreadPool& pool = pool_of(execution);
    const int parts = product.call.batch > 1 ? pool.threads() : 1;
    return pool.run(parts, [&](int part) {
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

// Returns the tensor, as float32 if it has 16-bit floats.
Result<Tensor> widened(Preparation& op, const Tensor& tensor) {
  return kernels::is_narrow_float(tensor.dtype) ? op.converted(tensor, DType::kFloat32) : Result<Tensor>(tensor);
}

// Returns y, or memory of its sizes for float32 if it has 16-bit floats.
Result<Tensor> wide_output(Preparation& op, const Tensor& y) {
  return kernels::is_narrow_float(y.dtype) ? op.scratch(DType::kFloat32, y.sizes()) : Result<Tensor>(y);
}

// Rounds what was computed in wide_output().
Status round_output(Preparation& op, const Tensor& wide, const Tensor& y) {
  return wide.dtype == y.dtype ? Status() : op.add(ConvertCall{wide, y});
}

Status check_no_pieces(const Preparation& op, const std::optional<std::int64_t>& pieces) {
  if (pieces.value_or(1) == 1) return Status();
  return op.unsupported("a sum of pieces has a kernel with weights of the package only");
}

// Returns the bias [out] in float32, contiguous.
Result<std::optional<Tensor>> wide_bias(Preparation& op, const std::optional<Tensor>& bias) {
  if (!bias) return bias;
  ACCORD_ASSIGN_OR_RETURN(const Tensor wide, op.converted(*bias, DType::kFloat32));
  ACCORD_ASSIGN_OR_RETURN(const Tensor whole, op.contiguous(wide));
  return std::optional<Tensor>(whole);
}

// Adds a layer whose weight is computed by the model.
Status add_plain_layer(Preparation& op, const RowTensor& x, const LinearLayer& layer) {
  ACCORD_RETURN_IF_ERROR(check_no_pieces(op, layer.pieces));
  ACCORD_ASSIGN_OR_RETURN(const Tensor input, widened(op, x.tensor));
  ACCORD_ASSIGN_OR_RETURN(Tensor weight, widened(op, layer.weight.tensor));
  ACCORD_ASSIGN_OR_RETURN(const std::optional<Tensor> bias, wide_bias(op, layer.bias));
  static constexpr int kTransposed[] = {1, 0};
  weight.layout = kernels::permuted_layout(weight.layout, kTransposed);
  ACCORD_ASSIGN_OR_RETURN(const Tensor y, wide_output(op, layer.y));
  const Sizes x_sizes = {x.rows.rows, x.rows.width};
  const Sizes x_strides = {input.dtype == x.tensor.dtype ? x.rows.stride : x.rows.width, 1};
  const Sizes y_sizes = {x.rows.rows, weight.size(1)};
  Tensor rows = input, made = y;
  rows.layout = kernels::strided_layout(x_sizes, x_strides);
  made.layout = kernels::contiguous_layout(y_sizes);
  ACCORD_RETURN_IF_ERROR(add_plain_product(op, rows, weight, made, 1.0F, 0.0F));
  if (bias) ACCORD_RETURN_IF_ERROR(op.add(BinaryCall{BinaryOp::kAdd, made, *bias, made}));
  return round_output(op, y, layer.y);
}

bool same_division(const kernels::PackedMatrix& a, const kernels::PackedMatrix& b) {
  return a.format == b.format && a.in_unit == b.in_unit && a.in_units == b.in_units && a.in_padding == b.in_padding;
}

bool same_blocks(const kernels::PackedMatrix& a, const kernels::PackedMatrix& b) {
  return same_division(a, b) && a.out_unit == b.out_unit && a.out_units == b.out_units;
}

// Adds the product with the gate on its own, because gate and weight are stored in different ways.
Status add_separate_gate(Preparation& op, const RowTensor& x, PackedProduct product) {
  PackedProduct first;
  first.weights = *product.gate;
  first.bias = product.gate_bias;
  first.activation = product.activation;
  ACCORD_ASSIGN_OR_RETURN(first.y, op.scratch(product.y.dtype, product.y.sizes()));
  product.gate.reset();
  product.gate_bias.reset();
  product.activation = Activation::kNone;
  ACCORD_RETURN_IF_ERROR(add_packed_products(op, x, {first}));
  ACCORD_RETURN_IF_ERROR(add_packed_products(op, x, {product}));
  return op.add(BinaryCall{BinaryOp::kMul, product.y, first.y, product.y});
}

// Layers whose weights are stored alike are one step.
Status add_linears(Preparation& op, const LinearsCall& call) {
  std::vector<std::vector<PackedProduct>> alike;
  for (const LinearLayer& layer : call.layers) {
    if (layer.weight.packed == nullptr || (layer.gate && layer.gate->packed == nullptr)) {
      if (layer.gate || layer.activation != Activation::kNone)
        return op.unsupported("an activation has a kernel only with weights of the package");
      ACCORD_RETURN_IF_ERROR(add_plain_layer(op, call.x, layer));
      continue;
    }
    PackedProduct product;
    product.weights = *layer.weight.packed;
    if (layer.gate) product.gate = *layer.gate->packed;
    ACCORD_ASSIGN_OR_RETURN(product.bias, wide_bias(op, layer.bias));
    ACCORD_ASSIGN_OR_RETURN(product.gate_bias, wide_bias(op, layer.gate_bias));
    product.activation = layer.activation;
    product.y = layer.y;
    if (layer.pieces) {
      ACCORD_RETURN_IF_ERROR(add_product_of_pieces(op, call.x, product, *layer.pieces));
    } else if (product.gate && !same_blocks(product.weights, *product.gate)) {
      ACCORD_RETURN_IF_ERROR(add_separate_gate(op, call.x, product));
    } else {
      const auto found = std::find_if(alike.begin(), alike.end(), [&](const std::vector<PackedProduct>& products) {
        return same_division(products.front().weights, product.weights);
      });
      (found == alike.end() ? alike.emplace_back() : *found).push_back(product);
    }
  }
  for (const std::vector<PackedProduct>& products : alike) {
    ACCORD_RETURN_IF_ERROR(add_packed_products(op, call.x, products));
  }
  return Status();
}

Status add_product_with_weight(Preparation& op, const MatrixProductCall& call) {
  if (call.alpha != 1.0 || call.beta != 1.0)
    return op.unsupported("alpha and beta other than 1 have no kernel with a weight of the package");
  ACCORD_ASSIGN_OR_RETURN(const RowTensor x, rows_of(op, call.a));
  PackedProduct product;
  product.weights = *call.b.packed;
  product.y = call.c;
  const bool one_row = call.bias && call.bias->dims() == 1 && call.bias->size(0) == product.weights.out();
  if (one_row) {
    ACCORD_ASSIGN_OR_RETURN(product.bias, wide_bias(op, call.bias));
  }
  ACCORD_RETURN_IF_ERROR(call.pieces ? add_product_of_pieces(op, x, product, *call.pieces)
                                     : add_packed_products(op, x, {product}));
  return call.bias && !one_row ? op.add(BinaryCall{BinaryOp::kAdd, call.c, *call.bias, call.c}) : Status();
}

Status add_matrix_product(Preparation& op, const MatrixProductCall& call) {
  if (call.b.packed != nullptr) return add_product_with_weight(op, call);
  ACCORD_RETURN_IF_ERROR(check_no_pieces(op, call.pieces));
  ACCORD_ASSIGN_OR_RETURN(const Tensor a, widened(op, call.a));
  ACCORD_ASSIGN_OR_RETURN(const Tensor b, widened(op, call.b.tensor));
  ACCORD_ASSIGN_OR_RETURN(const Tensor c, wide_output(op, call.c));
  if (call.bias) {
    ACCORD_ASSIGN_OR_RETURN(Tensor bias, widened(op, *call.bias));
    ACCORD_ASSIGN_OR_RETURN(bias.layout, kernels::broadcast_layout(bias.layout, c.sizes()));
    ACCORD_RETURN_IF_ERROR(op.add(BinaryScalarCall{BinaryOp::kMul, bias, kernels::Scalar::of(call.beta), c}));
  }
  ACCORD_RETURN_IF_ERROR(add_plain_product(op, a, b, c, static_cast<float>(call.alpha), call.bias ? 1.0F : 0.0F));
  return round_output(op, c, call.c);
}

}  // namespace

void set_matrix_steps(StepTable& table) {
  table.set<LinearsCall>(add_linears);
  table.set<MatrixProductCall>(add_matrix_product);
}

}  // namespace accord::engine::host
