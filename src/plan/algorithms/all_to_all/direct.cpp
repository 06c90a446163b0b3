// Direct all-to-all: each rank hands over the parts for the others and copies those for itself. This works in place,
// since a rank has copied all its parts before it receives the first.

#include "plan/algorithms.hpp"
#include "plan/algorithms/exchange.hpp"

namespace accord::plan {
namespace {

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

}  // namespace

AlgorithmEntry all_to_all_direct_entry() {
  return {.collective = Collective::kAllToAll,
          .name = "direct",
          .make = all_to_all_direct,
          .spans_hosts = true,
          .description = {.steps = "1",
                          .bytes = "(n - 1)/n M",
                          .selected = "from 256 B; several hosts: from 2 KB",
                          .source = "direct exchange; Thakur, Rabenseifner, Gropp 2005"}};
}

}  // namespace accord::plan
