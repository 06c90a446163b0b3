// All-to-all on buffers in windows: each rank copies its part of every input into its output as soon as the input's
// rank has arrived. In place it would overwrite data that others still read.
// Steps: 2 (a rank has arrived; all have read). Moved per rank: (n - 1)/n of the message. Direct exchange.

#include "plan/algorithms/catalog.hpp"

namespace accord::plan {

Result<Plan> all_to_all_zero_copy(const topology::Topology& topology, const Request& request) {
  const int size = topology.size();
  PlanBuilder plan("zero_copy", request, size, {.input_chunks = size, .output_chunks = size});
  plan.set_pacing(Pacing::kByPlan);
  plan.set_buffers(Buffers::kInWindowsApart);
  for (const Rank rank : plan.ranks()) {
    for (const Rank peer : peers_of(rank, size)) plan.on(rank).signal(peer, kBuffersReady);
    plan.on(rank).copy(input(rank, rank), {output(rank, rank)});
    for (const Rank peer : peers_of(rank, size)) {
      plan.on(rank).wait(peer, kBuffersReady).copy(input(peer, rank), {output(rank, peer)}).signal(peer, kBuffersDone);
    }
    for (const Rank peer : peers_of(rank, size)) plan.on(rank).wait(peer, kBuffersDone);
  }
  return std::move(plan).build();
}

}  // namespace accord::plan
