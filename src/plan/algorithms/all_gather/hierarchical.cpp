// Hierarchical all-gather.
//   1. Inside the host: each rank publishes its part, and all copy it.
//   2. Between hosts: for each other host, one rank puts all parts of its own host into the scratch of a rank there,
//      in one message.
//   3. Inside the host: all ranks copy the parts from there.
// The ranks of a host divide the other hosts among themselves.

#include "plan/algorithms.hpp"
#include "plan/algorithms/host_tree.hpp"

namespace accord::plan {
namespace {

Result<Plan> all_gather_hierarchical(const topology::Topology& topology, const Request& request) {
  const HostColumns tree(topology);
  const int size = topology.size(), hosts = tree.hosts();
  PlanBuilder plan("hierarchical", request, size, {.input_chunks = 1, .output_chunks = size, .scratch_chunks = size});
  plan.set_pacing(Pacing::kByPlan);
  const auto host_id = [](int host) { return 1 + host; };  // the signal that its parts have arrived
  for (const Rank rank : plan.ranks()) {
    const int host = topology.host_of(rank);
    const auto notify_others = [&](int id) {
      for (const Rank peer : topology.ranks_of_host(host))
        if (peer != rank) plan.on(rank).signal(peer, id);
    };
    plan.on(rank).copy(input(rank, 0), {output(rank, rank), scratch(rank, rank)});
    notify_others(0);
    for (const Rank owner : topology.ranks_of_host(host))
      if (owner != rank) plan.on(rank).wait(owner).copy(scratch(owner, owner), {output(rank, owner)});
    for (int step = 1; step < hosts; ++step) {
      const int to = (host + step) % hosts;
      if (tree.leader(to, host) != rank) continue;
      const Rank there = tree.leader(host, to);
      for (const Rank owner : topology.ranks_of_host(host))
        plan.on(rank).copy(output(rank, owner), {scratch(there, owner)});
      plan.on(rank).signal(there, host_id(host));
    }
    for (int step = 1; step < hosts; ++step) {
      const int from = (host + hosts - step) % hosts;
      const Rank holder = tree.leader(from, host);
      if (holder == rank) {
        plan.on(rank).wait(tree.leader(host, from), host_id(from));
        notify_others(host_id(from));
      } else {
        plan.on(rank).wait(holder, host_id(from));
      }
      for (const Rank owner : topology.ranks_of_host(from))
        plan.on(rank).copy(scratch(holder, owner), {output(rank, owner)});
    }
  }
  return std::move(plan).build();
}

}  // namespace

AlgorithmEntry all_gather_hierarchical_entry() {
  return {.collective = Collective::kAllGather,
          .name = "hierarchical",
          .make = all_gather_hierarchical,
          .fits = shares_hosts,
          .spans_hosts = true,
          .description = {.steps = "3",
                          .bytes = "(n - 1)/n M; between hosts: one message to each other host",
                          .selected = "several hosts, at least one with several ranks, from 17 ranks: below 1 KB",
                          .source = "two levels; Karonis, de Supinski, Foster and others 2000"}};
}

}  // namespace accord::plan
