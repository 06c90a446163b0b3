// One-shot all-reduce on buffers in windows: once all ranks have arrived, each adds the inputs of all, in rank order.
// In place it would overwrite data that others still read. Signals say that all have arrived and that all have read.
// Nothing is written to peers.

#include "plan/algorithms.hpp"
#include "plan/algorithms/exchange.hpp"

namespace accord::plan {
namespace {

Result<Plan> all_reduce_one_shot_zero_copy(const topology::Topology& topology, const Request& request) {
  const int size = topology.size();
  PlanBuilder plan("one_shot_zero_copy", request, size, {.input_chunks = 1, .output_chunks = 1});
  plan.set_order(Order::kCanonical);
  plan.set_pacing(Pacing::kByPlan);
  plan.set_buffers(Buffers::kInWindowsApart);
  for (const Rank rank : plan.ranks()) {
    sync_peers(plan, rank, size, kBuffersReady);
    plan.on(rank).reduce(inputs_of_all(size, 0), {output(rank, 0)});
    sync_peers(plan, rank, size, kBuffersDone);
  }
  return std::move(plan).build();
}

}  // namespace

AlgorithmEntry all_reduce_one_shot_zero_copy_entry() {
  return {
      .collective = Collective::kAllReduce,
      .name = "one_shot_zero_copy",
      .make = all_reduce_one_shot_zero_copy,
      .order = Order::kCanonical,
      .buffers = Buffers::kInWindowsApart,
      .description = {.steps = "2",
                      .bytes = "(n - 1) M",
                      .selected = "GPUs: registered, not in place, up to 8 ranks, 16 to 256 KB (4 ranks: to 512 KB; "
                                  "2 ranks: to 8 MB)",
                      .source = "all-pairs; MSCCL++ 2025"}};
}

}  // namespace accord::plan
