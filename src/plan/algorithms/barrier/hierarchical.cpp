// Hierarchical barrier: the ranks of a host notify its first rank, the first ranks of all hosts notify each other,
// and each then notifies its host.

#include "plan/algorithms.hpp"
#include "plan/algorithms/exchange.hpp"
#include "plan/algorithms/host_tree.hpp"

namespace accord::plan {
namespace {

Result<Plan> barrier_hierarchical(const topology::Topology& topology, const Request& request) {
  PlanBuilder plan("hierarchical", request, topology.size(), {});
  plan.set_pacing(Pacing::kByPlan);
  for (const Rank rank : plan.ranks()) {
    const int host = topology.host_of(rank);
    const Rank first = topology.ranks_of_host(host).front();
    if (rank != first) {
      plan.on(rank).signal(first).wait(first);
      continue;
    }
    std::vector<Rank> near, firsts;
    for (const Rank peer : peers_of(rank, topology.size())) {
      if (share_host(topology, rank, peer))
        near.push_back(peer);
      else if (topology.ranks_of_host(topology.host_of(peer)).front() == peer)
        firsts.push_back(peer);
    }
    for (const Rank peer : near) plan.on(rank).wait(peer);
    for (const Rank peer : firsts) plan.on(rank).signal(peer);
    for (const Rank peer : firsts) plan.on(rank).wait(peer);
    for (const Rank peer : near) plan.on(rank).signal(peer);
  }
  return std::move(plan).build();
}

}  // namespace

AlgorithmEntry barrier_hierarchical_entry() {
  return {.collective = Collective::kBarrier,
          .name = "hierarchical",
          .make = barrier_hierarchical,
          .fits = shares_hosts,
          .spans_hosts = true,
          .description = {.steps = "3",
                          .bytes = "h - 1 between hosts for each host",
                          .selected = "several hosts, at least one with several ranks, from 17 ranks",
                          .source = "two levels; Karonis, de Supinski, Foster and others 2000"}};
}

}  // namespace accord::plan
