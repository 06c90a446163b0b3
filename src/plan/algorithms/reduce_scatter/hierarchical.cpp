// Hierarchical reduce-scatter. On every host one rank leads each rank's part: the rank itself, or its counterpart on
// other hosts.
//   1. Inside the host: each rank publishes the parts that others lead, and the leader of a part adds it over the
//      ranks of the host.
//   2. Between hosts: the leader puts the sum into partials of the part's owner, which adds the sums over the hosts.
// Sums travel in partials. It follows the canonical tree, and therefore requires hosts that are subtrees of it. The
// paper is "Scalable reduction collectives with data partitioning-based multi-leader design".

#include "plan/algorithms.hpp"
#include "plan/algorithms/host_tree.hpp"

namespace accord::plan {
namespace {

Result<Plan> reduce_scatter_hierarchical(const topology::Topology& topology, const Request& request) {
  ACCORD_RETURN_IF_ERROR(check_hosts_are_subtrees(topology, "hierarchical reduce_scatter"));
  const HostColumns tree(topology);
  const int size = topology.size(), hosts = tree.hosts();
  const auto leader_of = [&](Rank owner, int host) { return tree.leader(tree.column_of(owner), host); };
  // Partials: the sums that arrive from each host, then the own host's sum of each part. Signals: part `owner` is
  // published; a sum has arrived.
  const auto own_sum = [&](Rank rank, Rank owner) { return partials(rank, hosts + owner); };
  PlanBuilder plan("hierarchical", request, size,
                   {.input_chunks = size,
                    .output_chunks = 1,
                    .scratch_chunks = tree.has_single() ? size + hosts : size,
                    .partial_chunks = hosts == 1 ? 0 : hosts + size});
  plan.set_order(Order::kCanonical);
  plan.set_pacing(Pacing::kByPlan);
  for (const Rank rank : plan.ranks()) {
    const int host = topology.host_of(rank);
    const std::vector<Rank>& near = topology.ranks_of_host(host);
    std::vector<Rank>
        owners;  // other hosts' owners first, so that their sums are in flight while this host's are added
    for (int step = 1; step <= hosts; ++step)
      for (const Rank owner : topology.ranks_of_host((host + step) % hosts)) owners.push_back(owner);
    for (const Rank owner : owners) {
      const Rank leader = leader_of(owner, host);
      if (leader != rank) plan.on(rank).copy(input(rank, owner), {scratch(rank, owner)}).signal(leader, owner);
    }
    for (const Rank owner : owners) {
      if (leader_of(owner, host) != rank) continue;
      std::vector<Chunk> sources;
      for (const Rank peer : near) {
        if (peer != rank) plan.on(rank).wait(peer, owner);
        sources.push_back(peer == rank ? input(rank, owner) : scratch(peer, owner));
      }
      if (near.size() > 1 || hosts == 1)
        plan.on(rank).reduce(std::move(sources), {hosts == 1 ? output(rank, 0) : own_sum(rank, owner)});
      if (owner == rank) continue;
      plan.on(rank)
          .copy(tree.is_single(host) ? input(rank, owner) : own_sum(rank, owner),
                {tree.arrival(owner, host, host, size)})
          .signal(owner, owner);
    }
    if (hosts == 1) continue;
    std::vector<Chunk> sums;
    for (const int from : tree.senders_to(host)) plan.on(rank).wait(leader_of(rank, from), rank);
    for (int from = 0; from < hosts; ++from) {
      const Chunk own = tree.is_single(host) ? input(rank, rank) : own_sum(rank, rank);
      sums.push_back(from == host ? own : tree.arrival(rank, from, from, size));
    }
    plan.on(rank).reduce(std::move(sums), {output(rank, 0)});
  }
  return std::move(plan).build();
}

}  // namespace

AlgorithmEntry reduce_scatter_hierarchical_entry() {
  return {.collective = Collective::kReduceScatter,
          .name = "hierarchical",
          .make = reduce_scatter_hierarchical,
          .order = Order::kCanonical,
          .fits = is_hierarchy,
          .spans_hosts = true,
          .adds_in_parts = true,
          .description = {
              .steps = "2",
              .bytes = "between hosts: (h - 1)/h M for each host",
              .selected = "several hosts that are subtrees of the canonical tree, from 2 KB; from 17 ranks: all sizes",
              .source = "multi-leader; Bayatpour and others 2017"}};
}

}  // namespace accord::plan
