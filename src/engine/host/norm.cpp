#include "engine/ops/norm.hpp"

#include "engine/host/row_parts.hpp"
#include "engine/host/steps.hpp"
#include "engine/ops/collective_steps.hpp"
#include "kernels/normalize.hpp"

namespace accord::engine::host {
namespace {

template <typename T>
Status run_norm_of(const NormCall& norm, const Execution& execution) {
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

Status run_norm(const NormCall& norm, const Execution& execution) {
  switch (norm.y.dtype) {
    case DType::kFloat16: return run_norm_of<kernels::Float16>(norm, execution);
    case DType::kBFloat16: return run_norm_of<kernels::BFloat16>(norm, execution);
    default: return run_norm_of<float>(norm, execution);
  }
}

Status add_norm(Preparation& op, const NormCall& call) {
  op.step([call](const Execution& execution) { return run_norm(call, execution); });
  return Status();
}

// One step, so that one call computes the end of a row-parallel layer while its rows are still in the first-level
// cache.
Status add_all_reduce_norm(Preparation& op, const AllReduceNormCall& call) {
  op.step(call_step(op.node(), call.all_reduce.group, [call](Communicator& communicator, const Execution& execution) {
    ACCORD_RETURN_IF_ERROR(run_all_reduce(call.all_reduce, communicator, execution));
    return run_norm(call.norm, execution);
  }));
  return Status();
}

}  // namespace

void set_norm_steps(StepTable& table) {
  table.set<NormCall>(add_norm);
  table.set<AllReduceNormCall>(add_all_reduce_norm);
}

}  // namespace accord::engine::host
