// Direct all-to-all: each rank hands over the parts for the others and copies those for itself. This works in place,
// since a rank has copied all its parts before it receives the first.
// Steps: 1. Moved per rank: (n - 1)/n of its input. Direct exchange; Thakur, Rabenseifner, Gropp 2005.

#include "plan/algorithms/catalog.hpp"

namespace accord::plan {

Result<Plan> all_to_all_direct(const topology::Topology& topology, const Request& request) {
  const int size = topology.size();
  PlanBuilder plan("direct", request, size, {.input_chunks = size, .output_chunks = size, .scratch_chunks = size});
  plan.set_pacing(Pacing::kByPlan);
  for (const Rank rank : plan.ranks()) {
    for (const Rank peer : peers_of(rank, size)) {
      plan.on(rank).copy(input(rank, peer), {handover(topology, rank, peer)}).signal(peer);
    }
    plan.on(rank).copy(input(rank, rank), {output(rank, rank)});
    for (const Rank peer : peers_of(rank, size)) {
      plan.on(rank).wait(peer).copy(handover(topology, peer, rank), {output(rank, peer)});
    }
  }
  return std::move(plan).build();
}

}  // namespace accord::plan
