#include "engine/ops/rows.hpp"

#include <algorithm>

#include "engine/gpu/elementwise.hpp"
#include "engine/gpu/kernels/row_kernels.hpp"
#include "engine/gpu/kernels/top_k_kernel.hpp"
#include "engine/gpu/run.hpp"
#include "engine/gpu/steps.hpp"

namespace accord::engine::gpu {
namespace {

Status add_reduce(Preparation& op, const ReduceCall& call) {
  const Tensor &x = call.x, &y = call.y;
  const std::vector<int>& dims = call.dims;
  std::vector<int> kept, gone;
  for (int dim = 0; dim < x.dims(); ++dim) {
    const bool reduces = dims.empty() || std::find(dims.begin(), dims.end(), dim) != dims.end();
    (reduces ? gone : kept).push_back(dim);
  }
  Reduce kernel;
  kernel.kind = call.kind;
  kernel.real = kernels::is_real(x.dtype);
  kernel.shape = shape_along(x, kept);
  kernel.kept[1] = operand_along(x, kept);
  // y has the dimensions that stay, and perhaps ones in place of the reduced dimensions. It is contiguous.
  kernel.kept[0].dtype = y.dtype;
  std::int64_t stride = 1;
  for (int i = kernel.shape.dims - 1; i >= 0; --i) {
    kernel.kept[0].strides[i] = stride;
    stride *= kernel.shape.sizes[i];
  }
  kernel.outputs = y.count();
  kernel.reduced = shape_along(x, gone);
  kernel.inner[0] = operand_along(x, gone);
  kernel.length = 1;
  for (const int dim : gone) kernel.length *= x.size(dim);
  join_dimensions(kernel.shape, kernel.kept);
  join_dimensions(kernel.reduced, kernel.inner);
  op.step([=, x = x, y = y](const Execution& execution) {
    Reduce placed = kernel;
    placed.kept[0].data = execution.address(y);
    placed.kept[1].data = placed.inner[0].data = execution.address(x);
    return launch_blocks(device_run(execution), placed, placed.outputs);
  });
  return Status();
}

Status add_cumulative_sum(Preparation& op, const CumulativeSumCall& call) {
  const Tensor &x = call.x, &y = call.y;
  const int dim = call.dim;
  std::vector<int> others;
  for (int i = 0; i < x.dims(); ++i) {
    if (i != dim) others.push_back(i);
  }
  CumulativeSum kernel;
  kernel.real = kernels::is_real(x.dtype);
  kernel.length = x.size(dim);
  kernel.lines = kernel.length == 0 ? 0 : x.count() / kernel.length;
  kernel.y_stride = y.stride(dim);
  kernel.x_stride = x.stride(dim);
  kernel.shape = shape_along(x, others);
  kernel.operands[0] = operand_along(y, others);
  kernel.operands[1] = operand_along(x, others);
  op.step([=, x = x, y = y](const Execution& execution) {
    CumulativeSum placed = kernel;
    placed.operands[0].data = execution.address(y);
    placed.operands[1].data = execution.address(x);
    return launch_over(device_run(execution), placed, placed.lines);
  });
  return Status();
}

Status add_softmax(Preparation& op, const SoftmaxCall& call) {
  op.step([call](const Execution& execution) {
    const Rows& rows = call.rows;
    const SoftmaxRows kernel{call.is_logarithm,
                             call.x.dtype,
                             rows.rows,
                             rows.width,
                             {execution.address(call.x), rows.stride},
                             {execution.address(call.y), rows.width}};
    return launch_blocks(device_run(execution), kernel, kernel.rows);
  });
  return Status();
}

Status add_top_k(Preparation& op, const TopKCall& best) {
  TopK kernel;
  kernel.largest = best.extreme == kernels::Extreme::kLargest;
  kernel.dtype = best.x.dtype;
  kernel.rows = best.rows.rows;
  kernel.width = best.rows.width;
  kernel.k = best.k;
  kernel.x_row_stride = best.rows.stride;
  op.step([=](const Execution& execution) {
    TopK placed = kernel;
    placed.x = execution.address(best.x);
    placed.values = execution.address(best.values);
    placed.indices = execution.data<std::int64_t>(best.indices);
    return launch_blocks(device_run(execution), placed, placed.rows);
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

}  // namespace accord::engine::gpu
