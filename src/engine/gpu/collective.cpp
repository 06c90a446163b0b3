#include "base/rounding.hpp"
#include "engine/gpu/kernels/code_kernels.hpp"
#include "engine/gpu/run.hpp"
#include "engine/gpu/steps.hpp"
#include "engine/ops/all_reduce.hpp"

namespace accord::engine::gpu {
namespace {

// Each block of threads handles 8 groups, one per warp.
template <typename K>
Status launch_for_groups(const Execution& execution, const K& kernel) {
  constexpr std::int64_t kOfBlock = 8;
  return launch_blocks(device_run(execution), kernel, quotient_up(kernel.groups, kOfBlock));
}

Status add_encode(Preparation& op, const EncodeCall& call) {
  op.step([call, groups = call.codes.count() / kernels::kCodeGroupBytes](const Execution& execution) {
    return launch_for_groups(execution, EncodeGroups{execution.address(call.x), call.x.dtype, call.x.count(), groups,
                                                     execution.address(call.codes)});
  });
  return Status();
}

Status add_sum_codes(Preparation& op, const SumCodesCall& call) {
  op.step([call, piece = call.received.count() / call.ranks](const Execution& execution) {
    const Rank rank = execution.communicators[static_cast<std::size_t>(call.group)]->rank();
    return launch_for_groups(
        execution, AddGroups{execution.address(call.received), call.ranks, piece, piece / kernels::kCodeGroupBytes,
                             execution.address(call.sums) + rank * piece});
  });
  return Status();
}

Status add_decode(Preparation& op, const DecodeCall& call) {
  op.step([call, count = call.y.count()](const Execution& execution) {
    const DecodeGroups kernel{execution.address(call.codes), count, execution.address(call.y), call.y.dtype};
    return launch_over(device_run(execution), kernel, count);
  });
  return Status();
}

}  // namespace

void set_collective_steps(StepTable& table) {
  table.set<EncodeCall>(add_encode);
  table.set<SumCodesCall>(add_sum_codes);
  table.set<DecodeCall>(add_decode);
}

}  // namespace accord::engine::gpu
