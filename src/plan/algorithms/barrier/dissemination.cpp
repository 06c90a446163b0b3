// Dissemination barrier: in step k each rank signals the rank 2^k after it and waits for the rank 2^k before it;
// after ceil(log2 n) steps it has heard from all, directly or indirectly. No pair meets twice, since 2^k < n.

#include "plan/algorithms.hpp"

namespace accord::plan {
namespace {

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

}  // namespace

AlgorithmEntry barrier_dissemination_entry() {
  return {.collective = Collective::kBarrier,
          .name = "dissemination",
          .make = barrier_dissemination,
          .spans_hosts = true,
          .description = {.steps = "ceil(log2 n)",
                          .bytes = "ceil(log2 n)",
                          .selected = "from 17 ranks; several hosts: with one rank each",
                          .source = "Hensgen, Finkel, Manber 1988"}};
}

}  // namespace accord::plan
