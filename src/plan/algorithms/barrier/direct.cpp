// Direct barrier: every rank signals all others and waits for all of them. Best for few ranks.

#include "plan/algorithms.hpp"
#include "plan/algorithms/exchange.hpp"

namespace accord::plan {
namespace {

Result<Plan> barrier_direct(const topology::Topology& topology, const Request& request) {
  PlanBuilder plan("direct", request, topology.size(), {});
  plan.set_pacing(Pacing::kByPlan);
  for (const Rank rank : plan.ranks()) {
    for (const Rank peer : peers_of(rank, topology.size())) plan.on(rank).signal(peer);
    for (const Rank peer : peers_of(rank, topology.size())) plan.on(rank).wait(peer);
  }
  return std::move(plan).build();
}

}  // namespace

AlgorithmEntry barrier_direct_entry() {
  return {.collective = Collective::kBarrier,
          .name = "direct",
          .make = barrier_direct,
          .spans_hosts = true,
          .description = {.steps = "1", .bytes = "n - 1", .selected = "up to 16 ranks", .source = "all-to-all flags"}};
}

}  // namespace accord::plan
