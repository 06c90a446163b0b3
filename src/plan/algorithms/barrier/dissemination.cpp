// Dissemination barrier: in step k each rank signals the rank 2^k after it and waits for the rank 2^k before it;
// after ceil(log2 n) steps it has heard from all, directly or indirectly. No pair meets twice, since 2^k < n.
// Steps: ceil(log2 n). Signals per rank: as many. Hensgen, Finkel, Manber 1988.

#include "plan/algorithms/catalog.hpp"

namespace accord::plan {

Result<Plan> barrier_dissemination(const topology::Topology& topology, const Request& request) {
  const int size = topology.size();
  PlanBuilder plan("dissemination", request, size, {});
  plan.set_pacing(Pacing::kByPlan);
  for (const Rank rank : plan.ranks()) {
    for (int distance = 1; distance < size; distance *= 2) {
      plan.on(rank).signal((rank + distance) % size).wait((rank + size - distance) % size);
    }
  }
  return std::move(plan).build();
}

}  // namespace accord::plan
