// All-gather by a switch: each rank writes its part to all at once, and copies the parts of the others from its own
// memory.
// Steps: 1. Moved per rank: 1/n of the output, written once. NVLink SHARP; NCCL 2.17.

#include "plan/algorithms/catalog.hpp"

namespace accord::plan {

Result<Plan> all_gather_nvls(const topology::Topology& topology, const Request& request) {
  const int size = topology.size();
  PlanBuilder plan("nvls", request, size, {.input_chunks = 1, .output_chunks = size, .multicast_chunks = size});
  plan.set_pacing(Pacing::kByPlan);
  for (const Rank rank : plan.ranks()) {
    if (size > 1) plan.on(rank).copy(input(rank, 0), {multicast(kEveryRank, rank)});
    for (const Rank peer : peers_of(rank, size)) plan.on(rank).signal(peer);
    plan.on(rank).copy(input(rank, 0), {output(rank, rank)});
    for (const Rank peer : peers_of(rank, size))
      plan.on(rank).wait(peer).copy(multicast(rank, peer), {output(rank, peer)});
  }
  return std::move(plan).build();
}

}  // namespace accord::plan
