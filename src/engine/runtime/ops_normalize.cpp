// Normalizations: rows of the last dimension, shared out among threads.
#include "engine/runtime/op_registry.hpp"
#include "kernels/normalize.hpp"

namespace accord::engine {
namespace {

constexpr std::int64_t kRowsWorthDividing = 32;

template <typename Body>
Status for_rows(const Execution& execution, std::int64_t rows, const Body& body) {
  const int parts = rows < kRowsWorthDividing ? 1 : execution.pool.threads();
  return execution.pool.run(parts, [&](int part) {
    body(part_range(rows, 1, part, parts));
    return Status();
  });
}

/// Weight and bias of a norm, of the last dimension.
struct NormWeights {
  std::optional<Tensor> weight;
  std::optional<Tensor> bias;
  float eps = 0.0F;
};

Result<NormWeights> norm_weights(Preparation& op, const Tensor& input, double default_eps) {
  ACCORD_ASSIGN_OR_RETURN(const Sizes normalized, op.integers("normalized_shape"));
  if (normalized.size() != 1 || input.dims() == 0 || input.size(input.dims() - 1) != normalized[0]) {
    return op.unsupported("only norms over the last dimension have a kernel");
  }
  NormWeights weights;
  ACCORD_ASSIGN_OR_RETURN(weights.weight, op.maybe_tensor("weight"));
  ACCORD_ASSIGN_OR_RETURN(weights.bias, op.maybe_tensor("bias"));
  ACCORD_ASSIGN_OR_RETURN(const double eps, op.real("eps", default_eps));
  weights.eps = static_cast<float>(eps);
  for (auto* tensor : {&weights.weight, &weights.bias}) {
    if (!*tensor) continue;
    ACCORD_RETURN_IF_ERROR(op.require(**tensor, {DType::kFloat32}));
    if ((*tensor)->sizes() != normalized) return op.corrupt("its weight or bias is not of the normalized shape");
    ACCORD_ASSIGN_OR_RETURN(*tensor, op.contiguous(**tensor));
  }
  return weights;
}

using NormKernel = void (*)(const kernels::RowsCall&, const kernels::NormParameters&);

/// y = norm(x [+ residual]), sum = x + residual if asked for.
struct Norm {
  NormKernel kernel = nullptr;
  RowTensor x;
  std::optional<RowTensor> residual;
  NormWeights weights;
  Tensor y;
  std::optional<Tensor> sum;
};

Status run_norm(const Norm& norm, const Execution& execution) {
  kernels::NormParameters parameters;
  parameters.weight = norm.weights.weight ? execution.data<const float>(*norm.weights.weight) : nullptr;
  parameters.bias = norm.weights.bias ? execution.data<const float>(*norm.weights.bias) : nullptr;
  parameters.eps = norm.weights.eps;
  const std::int64_t width = norm.x.rows.width;
  return for_rows(execution, norm.x.rows.rows, [&](const PartRange& range) {
    kernels::RowsCall rows;
    rows.x = execution.data<const float>(norm.x.tensor) + range.first * norm.x.rows.stride;
    rows.x_row_stride = norm.x.rows.stride;
    rows.y = execution.data<float>(norm.y) + range.first * width;
    rows.y_row_stride = width;
    rows.rows = range.last - range.first;
    rows.width = width;
    kernels::NormParameters mine = parameters;
    if (norm.residual) {
      mine.residual = execution.data<const float>(norm.residual->tensor) + range.first * norm.residual->rows.stride;
      mine.residual_row_stride = norm.residual->rows.stride;
    }
    if (norm.sum) {
      mine.sum = execution.data<float>(*norm.sum) + range.first * width;
      mine.sum_row_stride = width;
    }
    norm.kernel(rows, mine);
  });
}

Status prepare_norm(Preparation& op, NormKernel kernel, double default_eps) {
  ACCORD_ASSIGN_OR_RETURN(const Tensor input, op.tensor("input"));
  Norm norm;
  norm.kernel = kernel;
  ACCORD_ASSIGN_OR_RETURN(norm.weights, norm_weights(op, input, default_eps));
  ACCORD_ASSIGN_OR_RETURN(norm.x, rows_of(op, input));
  ACCORD_ASSIGN_OR_RETURN(norm.y, op.make_over(0, input.sizes(), {norm.x.tensor}));
  op.step([norm](const Execution& execution) { return run_norm(norm, execution); });
  return Status();
}

Status prepare_layer_norm(Preparation& op) { return prepare_norm(op, kernels::layer_norm, 1e-5); }
// PyTorch's default is the machine epsilon of the dtype.
Status prepare_rms_norm(Preparation& op) { return prepare_norm(op, kernels::rms_norm, 1.1920928955078125e-07); }

Status prepare_add_layer_norm(Preparation& op) {
  ACCORD_ASSIGN_OR_RETURN(const Tensor self, op.tensor("self"));
  ACCORD_ASSIGN_OR_RETURN(const Tensor residual, op.tensor("residual"));
  if (self.sizes() != residual.sizes()) return op.corrupt("its two inputs differ in sizes");
  Norm norm;
  norm.kernel = kernels::layer_norm;
  ACCORD_ASSIGN_OR_RETURN(norm.weights, norm_weights(op, self, 1e-5));
  ACCORD_ASSIGN_OR_RETURN(norm.x, rows_of(op, self));
  ACCORD_ASSIGN_OR_RETURN(norm.residual, rows_of(op, residual));
  if (op.output_used(1)) {
    // The kernel may write the sum over an input, but then y needs a place of its own.
    ACCORD_ASSIGN_OR_RETURN(norm.sum, op.make_over(1, self.sizes(), {norm.x.tensor, norm.residual->tensor}));
    ACCORD_ASSIGN_OR_RETURN(norm.y, op.make(0, self.sizes()));
  } else {
    ACCORD_ASSIGN_OR_RETURN(norm.y, op.make_over(0, self.sizes(), {norm.x.tensor, norm.residual->tensor}));
  }
  op.step([norm](const Execution& execution) { return run_norm(norm, execution); });
  return Status();
}

using SoftmaxKernel = void (*)(const kernels::RowsCall&);

// Over another dimension than the last one, that dimension is brought to the end and the output is a view.
Status prepare_softmax(Preparation& op, SoftmaxKernel kernel) {
  ACCORD_ASSIGN_OR_RETURN(const Tensor given, op.tensor("self"));
  ACCORD_ASSIGN_OR_RETURN(Tensor self, op.converted(given, op.declared_dtype()));
  ACCORD_RETURN_IF_ERROR(op.require(self, {DType::kFloat32}));
  ACCORD_ASSIGN_OR_RETURN(const int dim, op.dimension("dim", self.dims()));
  std::vector<int> order;
  for (int i = 0; i < self.dims(); ++i) {
    if (i != dim) order.push_back(i);
  }
  if (self.dims() > 0) order.push_back(dim);
  const Sizes sizes = self.sizes();
  const bool last = dim == self.dims() - 1 || self.dims() == 0;
  if (!last) self.layout = kernels::permuted_layout(self.layout, order);
  ACCORD_ASSIGN_OR_RETURN(const RowTensor x, rows_of(op, self));
  Tensor y;
  if (last) {
    ACCORD_ASSIGN_OR_RETURN(y, op.make_over(0, sizes, {x.tensor}));
  } else {
    ACCORD_ASSIGN_OR_RETURN(y, op.make_ordered(0, sizes, order));
  }
  op.step([=](const Execution& execution) {
    return for_rows(execution, x.rows.rows, [&](const PartRange& range) {
      kernels::RowsCall rows;
      rows.x = execution.data<const float>(x.tensor) + range.first * x.rows.stride;
      rows.x_row_stride = x.rows.stride;
      rows.y = execution.data<float>(y) + range.first * x.rows.width;
      rows.y_row_stride = x.rows.width;
      rows.rows = range.last - range.first;
      rows.width = x.rows.width;
      kernel(rows);
    });
  });
  return Status();
}

Status prepare_softmax(Preparation& op) { return prepare_softmax(op, kernels::softmax); }
Status prepare_log_softmax(Preparation& op) { return prepare_softmax(op, kernels::log_softmax); }

constexpr OpEntry kTable[] = {
    {"aten.layer_norm.default", prepare_layer_norm},    {"aten.rms_norm.default", prepare_rms_norm},
    {"accord.add_layer_norm", prepare_add_layer_norm},  {"aten._softmax.default", prepare_softmax},
    {"aten._log_softmax.default", prepare_log_softmax},
};

}  // namespace

std::span<const OpEntry> normalization_ops() { return kTable; }

}  // namespace accord::engine
