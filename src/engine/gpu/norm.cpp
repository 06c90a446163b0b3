#include "engine/ops/norm.hpp"

#include "comm/group.hpp"
#include "device/norm_rows.hpp"
#include "engine/gpu/run.hpp"
#include "engine/gpu/steps.hpp"
#include "engine/ops/collective_steps.hpp"

namespace accord::engine::gpu {
namespace {

device::NormRows norm_rows(const NormCall& norm, const Execution& execution) {
  const auto address = [&](const std::optional<Tensor>& tensor) -> void* {
    return tensor ? execution.address(*tensor) : nullptr;
  };
  const std::int64_t width = norm.x.rows.width;
  device::NormRows kernel;
  kernel.subtract_mean = norm.kind == NormKind::kLayer;
  kernel.dtype = norm.y.dtype;
  kernel.rows = norm.x.rows.rows;
  kernel.width = width;
  kernel.x = {execution.address(norm.x.tensor), norm.x.rows.stride};
  if (norm.residual) kernel.residual = {execution.address(norm.residual->tensor), norm.residual->rows.stride};
  kernel.y = {execution.address(norm.y), width};
  kernel.sum = {address(norm.sum), width};
  kernel.weight = address(norm.weights.weight);
  kernel.bias = address(norm.weights.bias);
  kernel.addend = address(norm.weights.addend);
  kernel.eps = norm.weights.eps;
  return kernel;
}

Status add_norm(Preparation& op, const NormCall& call) {
  op.step([call](const Execution& execution) {
    const DeviceRun& run = device_run(execution);
    return device::launch_norm(run.runtime, norm_rows(call, execution), run.device, run.stream);
  });
  return Status();
}

// Both are one kernel if the communicator runs a plan of its own and there are few rows.
Status add_all_reduce_norm(Preparation& op, const AllReduceNormCall& both) {
  op.step(call_step(op.node(), both.all_reduce.group, [both](Communicator& communicator, const Execution& execution) {
    const AllReduce& sum = both.all_reduce;
    const Call call = Call::all_reduce(const_buffer_of(sum.input, execution), buffer_of(sum.output, execution), sum.op);
    return communicator.group()->run(call, norm_rows(both.norm, execution), call_options(execution));
  }));
  return Status();
}

}  // namespace

void set_norm_steps(StepTable& table) {
  table.set<NormCall>(add_norm);
  table.set<AllReduceNormCall>(add_all_reduce_norm);
}

}  // namespace accord::engine::gpu
