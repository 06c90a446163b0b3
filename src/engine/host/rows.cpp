#include "engine/ops/rows.hpp"

#include "engine/host/row_parts.hpp"
#include "engine/host/steps.hpp"
#include "kernels/cumulative_sum.hpp"
#include "kernels/normalize.hpp"

namespace accord::engine::host {
namespace {

Status add_softmax(Preparation& op, const SoftmaxCall& call) {
  ACCORD_RETURN_IF_ERROR(op.require(call.x, {DType::kFloat32}));
  op.step([call](const Execution& execution) {
    return for_rows(execution, call.rows.rows, [&](const PartRange& range) {
      kernels::RowsCall rows;
      rows.x = execution.data<const float>(call.x) + range.first * call.rows.stride;
      rows.x_row_stride = call.rows.stride;
      rows.y = execution.data<float>(call.y) + range.first * call.rows.width;
      rows.y_row_stride = call.rows.width;
      rows.rows = range.last - range.first;
      rows.width = call.rows.width;
      call.is_logarithm ? kernels::log_softmax(rows) : kernels::softmax(rows);
    });
  });
  return Status();
}

Status add_reduce(Preparation& op, const ReduceCall& call) {
  op.step([call](const Execution& execution) {
    return kernels::reduce_dims(call.kind, execution.read(call.x), call.dims, execution.write(call.y));
  });
  return Status();
}

Status add_cumulative_sum(Preparation& op, const CumulativeSumCall& call) {
  op.step([call](const Execution& execution) {
    return kernels::cumulative_sum(execution.read(call.x), call.dim, execution.write(call.y));
  });
  return Status();
}

Status add_top_k(Preparation& op, const TopKCall& call) {
  op.step([call](const Execution& execution) {
    kernels::TopKCall kernel;
    kernel.extreme = call.extreme;
    kernel.dtype = call.x.dtype;
    kernel.x = execution.address(call.x);
    kernel.rows = call.rows.rows;
    kernel.width = call.rows.width;
    kernel.x_row_stride = call.rows.stride;
    kernel.k = call.k;
    kernel.values = execution.address(call.values);
    kernel.indices = execution.data<std::int64_t>(call.indices);
    kernels::top_k(kernel);
    return Status();
  });
  return Status();
}

}  // namespace

void set_row_steps(StepTable& table) {
  table.set<SoftmaxCall>(add_softmax);
  table.set<ReduceCall>(add_reduce);
  table.set<CumulativeSumCall>(add_cumulative_sum);
  table.set<TopKCall>(add_top_k);
}

}  // namespace accord::engine::host
