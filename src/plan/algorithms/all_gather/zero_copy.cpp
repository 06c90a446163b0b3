// All-gather on buffers in windows: once all ranks have arrived, each copies the inputs of all into its output. In
// place, a rank's input is its own part of the output, which only others read.
// Steps: 2 (all have arrived; all have read). Moved per rank: (n - 1)/n of the message. Direct exchange.

#include "plan/algorithms/catalog.hpp"

namespace accord::plan {

Result<Plan> all_gather_zero_copy(const topology::Topology& topology, const Request& request) {
  const int size = topology.size();
  PlanBuilder plan("zero_copy", request, size, {.input_chunks = 1, .output_chunks = size});
  plan.set_pacing(Pacing::kByPlan);
  plan.set_buffers(Buffers::kInWindows);
  for (const Rank rank : plan.ranks()) {
    for (const Rank peer : peers_of(rank, size)) plan.on(rank).signal(peer, kBuffersReady);
    plan.on(rank).copy(input(rank, 0), {output(rank, rank)});
    for (const Rank peer : peers_of(rank, size)) {
      plan.on(rank).wait(peer, kBuffersReady).copy(input(peer, 0), {output(rank, peer)}).signal(peer, kBuffersDone);
    }
    for (const Rank peer : peers_of(rank, size)) plan.on(rank).wait(peer, kBuffersDone);
  }
  return std::move(plan).build();
}

}  // namespace accord::plan
