// One-shot all-reduce on buffers in windows: once all ranks have arrived, each adds the inputs of all, in rank order.
// In place it would overwrite data that others still read.
// Steps: 2 (all have arrived; all have read). Moved per rank: n - 1 times the message; nothing is written to peers.
// All-pairs algorithm of MSCCL++.

#include "plan/algorithms/catalog.hpp"

namespace accord::plan {

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

}  // namespace accord::plan
