// Direct barrier: every rank signals all others and waits for all of them.
// Steps: 1. Signals per rank: n - 1. All-to-all flags: best for few ranks.

#include "plan/algorithms/catalog.hpp"

namespace accord::plan {

Result<Plan> barrier_direct(const topology::Topology& topology, const Request& request) {
  PlanBuilder plan("direct", request, topology.size(), {});
  plan.set_pacing(Pacing::kByPlan);
  for (const Rank rank : plan.ranks()) {
    for (const Rank peer : peers_of(rank, topology.size())) plan.on(rank).signal(peer);
    for (const Rank peer : peers_of(rank, topology.size())) plan.on(rank).wait(peer);
  }
  return std::move(plan).build();
}

}  // namespace accord::plan
