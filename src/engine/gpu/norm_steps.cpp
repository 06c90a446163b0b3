#include "engine/gpu/norm_steps.hpp"

#include "comm/group.hpp"
#include "device/norm_rows.hpp"
#include "engine/gpu/run.hpp"
#include "engine/graph/node_access.hpp"
#include "engine/ops/collective_steps.hpp"

namespace accord::engine {
namespace {

device::NormRows kernel_of(const Norm& norm, const Execution& execution) {
  const auto address = [&](const std::optional<Tensor>& tensor) -> void* {
    return tensor ? execution.address(*tensor) : nullptr;
  };
  const std::int64_t width = norm.x.rows.width;
  device::NormRows kernel;
  kernel.of_mean = norm.kind == NormKind::kLayer;
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

}  // namespace

Status run_norm_on_device(const Norm& norm, const Execution& execution) {
  const DeviceRun& run = device_run(execution);
  return device::launch_norm(run.runtime, kernel_of(norm, execution), run.device, run.stream);
}

Status run_sum_and_norm_on_device(const AllReduce& sum, const Norm& norm, const Execution& execution) {
  if (sum.by_itself) {
    ACCORD_RETURN_IF_ERROR(run_step(sum, execution));
    return run_norm_on_device(norm, execution);
  }
  const Communicator& communicator = *execution.communicators[static_cast<std::size_t>(sum.group)];
  const Call call = Call::all_reduce(const_buffer_of(sum.input, execution), buffer_of(sum.output, execution), sum.op);
  const Status status = communicator.group()->run(call, kernel_of(norm, execution), call_options(execution));
  return status.ok() ? status : status.with_context(node_text(*sum.node));
}

}  // namespace accord::engine
