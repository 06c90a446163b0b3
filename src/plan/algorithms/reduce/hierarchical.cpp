// Hierarchical reduce. The message is cut into as many columns as the largest host has ranks; on every host one rank
// leads a column.
//   1. Inside the host: each rank publishes its input, and the leader of a column adds it over the ranks of the host.
//   2. Between hosts: the leader puts the sum into partials of the leader on the root's host, which adds the sums over
//      the hosts.
//   3. Inside the root's host: the root copies the columns from the leaders' scratch.
// Sums travel in partials. It follows the canonical tree, and therefore requires hosts that are subtrees of it.
// Multi-leader: Bayatpour and others 2017.

#include "plan/algorithms.hpp"
#include "plan/algorithms/host_tree.hpp"

namespace accord::plan {
namespace {

Result<Plan> reduce_hierarchical(const topology::Topology& topology, const Request& request) {
  ACCORD_RETURN_IF_ERROR(check_hosts_are_subtrees(topology, "hierarchical reduce"));
  const HostColumns tree(topology);
  const Rank root = request.root;
  const int hosts = tree.hosts(), columns = tree.columns(), root_host = topology.host_of(root);
  // Partials: the sums that arrive from each host, then those of the own host. Signal `column` from a leader to the
  // root: the column is finished; from another rank to a leader: the column is published, or its sum has arrived.
  const auto place = [&](int column, int from) { return column * hosts + from; };
  PlanBuilder plan("hierarchical", request, topology.size(),
                   {.input_chunks = columns,
                    .output_chunks = columns,
                    .scratch_chunks = tree.has_single() ? columns + columns * hosts : columns,
                    .partial_chunks = hosts == 1 ? 0 : columns * hosts + columns});
  plan.set_order(Order::kCanonical);
  for (const Rank rank : plan.ranks()) {
    const int host = topology.host_of(rank);
    const std::vector<Rank>& near = topology.ranks_of_host(host);
    for (int column = 0; column < columns; ++column) {
      const Rank leader = tree.leader(column, host);
      if (leader != rank) plan.on(rank).copy(input(rank, column), {scratch(rank, column)}).signal(leader, column);
    }
    for (int column = 0; column < columns; ++column) {
      if (tree.leader(column, host) != rank) continue;
      const Chunk result = rank == root ? output(rank, column) : scratch(rank, column);
      const Chunk own_sum = near.size() == 1 ? input(rank, column) : partials(rank, columns * hosts + column);
      std::vector<Chunk> sources;
      for (const Rank peer : near) {
        if (peer != rank) plan.on(rank).wait(peer, column);
        sources.push_back(peer == rank ? input(rank, column) : scratch(peer, column));
      }
      if (near.size() > 1 || hosts == 1) plan.on(rank).reduce(std::move(sources), {hosts == 1 ? result : own_sum});
      if (host != root_host) {
        const Rank there = tree.leader(column, root_host);
        plan.on(rank).copy(own_sum, {tree.arrival(there, host, place(column, host), columns)}).signal(there, column);
        continue;
      }
      std::vector<Chunk> sums;
      for (int from = 0; from < hosts; ++from) {
        if (from != host) plan.on(rank).wait(tree.leader(column, from), column);
        sums.push_back(from == host ? own_sum : tree.arrival(rank, from, place(column, from), columns));
      }
      if (hosts > 1) plan.on(rank).reduce(std::move(sums), {result});
      if (rank != root) plan.on(rank).signal(root, column);
    }
    for (int column = 0; column < columns && rank == root; ++column) {
      const Rank leader = tree.leader(column, host);
      if (leader != root) plan.on(root).wait(leader, column).copy(scratch(leader, column), {output(root, column)});
    }
  }
  return std::move(plan).build();
}

}  // namespace

AlgorithmEntry reduce_hierarchical_entry() {
  return {
      .collective = Collective::kReduce,
      .name = "hierarchical",
      .make = reduce_hierarchical,
      .order = Order::kCanonical,
      .fits = is_hierarchy,
      .spans_hosts = true,
      .adds_in_parts = true,
      .description = {
          .steps = "3",
          .bytes = "between hosts: M for each host",
          .selected = "several hosts that are subtrees of the canonical tree, from 128 KB; from 17 ranks: all sizes",
          .source = "two levels; Karonis, de Supinski, Foster and others 2000"}};
}

}  // namespace accord::plan
