#include "engine/gpu/norm.hpp"

#include <algorithm>

#include "comm/internal.hpp"
#include "engine/gpu/kernels/sum_and_norm.hpp"
#include "engine/gpu/run.hpp"
#include "engine/gpu/steps.hpp"
#include "engine/ops/collective_steps.hpp"
#include "engine/ops/norm.hpp"

namespace accord::engine::gpu {
namespace {

NormCalculation norm_of(const NormCall& norm, const Execution& execution) {
  const auto address = [&](const std::optional<Tensor>& tensor) -> void* {
    return tensor ? execution.address(*tensor) : nullptr;
  };
  const std::int64_t width = norm.x.rows.width;
  NormCalculation kernel;
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

template <DType kDType>
Status launch_sum_and_norm(const exec::PlanLaunch& plan, const NormCalculation& norm) {
  const SumAndNormRows<kDType> kernel{{plan.run, plan.program, {norm}}};
  return device::launch(plan.runtime, kernel, plan.grid, plan.device, plan.stream);
}

constexpr std::int64_t kMaxBlocks = 4096;

// A thread has one unit of a row, or more if a row has more units than the largest block has threads.
template <DType kDType, int kKept>
Status launch_long_rows(device::Runtime& runtime, const NormCalculation& norm, std::int64_t units, Device device,
                        Stream stream) {
  constexpr std::int64_t kWarp = 32;
  const NormRows<kDType, kKept> kernel{norm};
  const std::int64_t threads = std::min<std::int64_t>(ceil_divide(units, kWarp) * kWarp, kernel.kThreads);
  const device::Grid grid{static_cast<int>(std::min(norm.rows, kMaxBlocks)), static_cast<int>(threads)};
  return device::launch(runtime, kernel, grid, device, stream);
}

// A row that the lanes of a warp can keep in registers is computed by a warp.
template <DType kDType>
Status launch_norms(device::Runtime& runtime, const NormCalculation& norm, Device device, Stream stream) {
  constexpr std::int64_t kWarp = 32, kEach = kElementsOfWords<kDType>;
  const std::int64_t units = norm.width % kEach == 0 ? norm.width / kEach : norm.width;
  if (units > NormRows<kDType, 1>::kThreads)
    return launch_long_rows<kDType, kMostKept>(runtime, norm, units, device, stream);
  if (units > NormShortRows<kDType>::kKept * kWarp)
    return launch_long_rows<kDType, 1>(runtime, norm, units, device, stream);
  const NormShortRows<kDType> kernel{norm};
  const std::int64_t blocks = std::min(ceil_divide(norm.rows, kernel.kThreads / kWarp), kMaxBlocks);
  return device::launch(runtime, kernel, {static_cast<int>(blocks), kernel.kThreads}, device, stream);
}

Status add_norm(Preparation& op, const NormCall& call) {
  op.step([call](const Execution& execution) {
    const DeviceRun& run = device_run(execution);
    return launch_norm(run.runtime, norm_of(call, execution), run.device, run.stream);
  });
  return Status();
}

// Both are one kernel if the communicator runs a plan of its own and there are few rows.
Status add_all_reduce_norm(Preparation& op, const AllReduceNormCall& both) {
  op.step(call_step(op.node(), both.all_reduce.group, [both](Communicator& communicator, const Execution& execution) {
    const AllReduce& sum = both.all_reduce;
    const Call call = Call::all_reduce(const_buffer_of(sum.input, execution), buffer_of(sum.output, execution), sum.op);
    return comm::run(communicator, call, NormEpilogue(norm_of(both.norm, execution)), call_options(execution));
  }));
  return Status();
}

}  // namespace

Status launch_norm(device::Runtime& runtime, const NormCalculation& norm, Device device, Stream stream) {
  if (norm.rows == 0) return Status();
  switch (norm.dtype) {
    case DType::kFloat16: return launch_norms<DType::kFloat16>(runtime, norm, device, stream);
    case DType::kBFloat16: return launch_norms<DType::kBFloat16>(runtime, norm, device, stream);
    default: return launch_norms<DType::kFloat32>(runtime, norm, device, stream);
  }
}

Status NormEpilogue::launch_with(const exec::PlanLaunch& plan) const {
  switch (plan.program.dtype) {
    case DType::kFloat16: return launch_sum_and_norm<DType::kFloat16>(plan, norm_);
    case DType::kBFloat16: return launch_sum_and_norm<DType::kBFloat16>(plan, norm_);
    default: return launch_sum_and_norm<DType::kFloat32>(plan, norm_);
  }
}

void set_norm_steps(StepTable& table) {
  table.set<NormCall>(add_norm);
  table.set<AllReduceNormCall>(add_all_reduce_norm);
}

}  // namespace accord::engine::gpu
