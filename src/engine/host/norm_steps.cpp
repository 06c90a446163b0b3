#include "engine/host/norm_steps.hpp"

#include "engine/gpu/norm_steps.hpp"
#include "engine/host/row_parts.hpp"
#include "kernels/normalize.hpp"

namespace accord::engine {
namespace {

// PyTorch's defaults. The one of rms_norm is the machine epsilon of float32.
constexpr double kLayerNormEps = 1e-5;
constexpr double kRmsNormEps = 1.1920928955078125e-07;

template <typename T>
Status run_norm_of(const Norm& norm, const Execution& execution) {
  kernels::NormParametersOf<T> parameters;
  parameters.weight = norm.weights.weight ? execution.data<const T>(*norm.weights.weight) : nullptr;
  parameters.bias = norm.weights.bias ? execution.data<const T>(*norm.weights.bias) : nullptr;
  parameters.addend = norm.weights.addend ? execution.data<const T>(*norm.weights.addend) : nullptr;
  parameters.eps = norm.weights.eps;
  const std::int64_t width = norm.x.rows.width;
  return for_rows(execution, norm.x.rows.rows, [&](const PartRange& range) {
    kernels::RowsOf<T> rows;
    rows.x = execution.data<const T>(norm.x.tensor) + range.first * norm.x.rows.stride;
    rows.x_row_stride = norm.x.rows.stride;
    rows.y = execution.data<T>(norm.y) + range.first * width;
    rows.y_row_stride = width;
    rows.rows = range.last - range.first;
    rows.width = width;
    kernels::NormParametersOf<T> mine = parameters;
    if (norm.residual) {
      mine.residual = execution.data<const T>(norm.residual->tensor) + range.first * norm.residual->rows.stride;
      mine.residual_row_stride = norm.residual->rows.stride;
    }
    if (norm.sum) {
      mine.sum = execution.data<T>(*norm.sum) + range.first * width;
      mine.sum_row_stride = width;
    }
    norm.kind == NormKind::kLayer ? kernels::layer_norm(rows, mine) : kernels::rms_norm(rows, mine);
  });
}

}  // namespace

Status see_one_dtype(Preparation& op, std::initializer_list<std::string_view> names) {
  const DType dtype = op.declared_dtype();
  bool one = true;
  for (const std::string_view name : names) {
    ACCORD_ASSIGN_OR_RETURN(const std::optional<Tensor> tensor, op.maybe_tensor(name));
    one = one && (!tensor || tensor->dtype == dtype);
  }
  for (std::size_t output = 0; output < op.outputs(); ++output) one = one && op.declared_dtype(output) == dtype;
  if (!one) op.widen();
  return Status();
}

Result<NormWeights> norm_weights(Preparation& op, NormKind kind, const Tensor& input) {
  ACCORD_ASSIGN_OR_RETURN(const Sizes normalized, op.integers("normalized_shape"));
  if (normalized.size() != 1 || input.dims() == 0 || input.size(input.dims() - 1) != normalized[0]) {
    return op.unsupported("only norms over the last dimension have a kernel");
  }
  NormWeights weights;
  ACCORD_ASSIGN_OR_RETURN(weights.weight, op.maybe_tensor("weight"));
  ACCORD_ASSIGN_OR_RETURN(weights.bias, op.maybe_tensor("bias"));
  ACCORD_ASSIGN_OR_RETURN(weights.addend, op.maybe_tensor("addend"));
  ACCORD_ASSIGN_OR_RETURN(const double eps, op.real("eps", kind == NormKind::kLayer ? kLayerNormEps : kRmsNormEps));
  weights.eps = static_cast<float>(eps);
  for (auto* tensor : {&weights.weight, &weights.bias, &weights.addend}) {
    if (!*tensor) continue;
    ACCORD_RETURN_IF_ERROR(op.require(**tensor, {input.dtype}));
    if ((*tensor)->sizes() != normalized) return op.corrupt("its weight or bias is not of the normalized shape");
    ACCORD_ASSIGN_OR_RETURN(*tensor, op.contiguous(**tensor));
  }
  return weights;
}

Status run_norm(const Norm& norm, const Execution& execution) {
  if (execution.on_device != nullptr) return run_norm_on_device(norm, execution);
  switch (norm.y.dtype) {
    case DType::kFloat16: return run_norm_of<kernels::Float16>(norm, execution);
    case DType::kBFloat16: return run_norm_of<kernels::BFloat16>(norm, execution);
    default: return run_norm_of<float>(norm, execution);
  }
}

}  // namespace accord::engine
