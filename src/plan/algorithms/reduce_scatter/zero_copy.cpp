// Reduce-scatter on buffers in windows: once all ranks have arrived, each adds its own part over the inputs of all,
// in rank order. In place, the sum is stored where only this rank reads.
// Steps: 2 (all have arrived; all have read). Moved per rank: (n - 1)/n of the message. Direct exchange.

#include "plan/algorithms/catalog.hpp"

namespace accord::plan {

Result<Plan> reduce_scatter_zero_copy(const topology::Topology& topology, const Request& request) {
  const int size = topology.size();
  PlanBuilder plan("zero_copy", request, size, {.input_chunks = size, .output_chunks = 1});
  plan.set_order(Order::kCanonical);
  plan.set_pacing(Pacing::kByPlan);
  plan.set_buffers(Buffers::kInWindows);
  for (const Rank rank : plan.ranks()) {
    sync_peers(plan, rank, size, kBuffersReady);
    plan.on(rank).reduce(inputs_of_all(size, rank), {output(rank, 0)});
    sync_peers(plan, rank, size, kBuffersDone);
  }
  return std::move(plan).build();
}

}  // namespace accord::plan
