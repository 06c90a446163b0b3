// Direct all-gather: each rank lays its part open in its scratch and copies everybody else's from theirs.
// Steps: 1. Moved per rank: (n - 1)/n of the output. Direct exchange; Thakur, Rabenseifner, Gropp 2005.

#include "plan/algorithms/catalog.hpp"

namespace accord::plan {

Result<Plan> all_gather_direct(const topology::Topology& topology, const Request& request) {
  const int size = topology.size();
  PlanBuilder plan("direct", request, size, {.input_chunks = 1, .output_chunks = size, .scratch_chunks = 1});
  plan.set_pacing(Pacing::kByPlan);
  for (const Rank rank : plan.ranks()) {
    if (size > 1) plan.on(rank).copy(input(rank, 0), {scratch(rank, 0)});
    for (const Rank peer : peers_of(rank, size)) plan.on(rank).signal(peer);
    plan.on(rank).copy(input(rank, 0), {output(rank, rank)});
    for (const Rank peer : peers_of(rank, size)) plan.on(rank).wait(peer).copy(scratch(peer, 0), {output(rank, peer)});
  }
  return std::move(plan).build();
}

}  // namespace accord::plan
