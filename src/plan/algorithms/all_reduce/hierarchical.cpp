// Hierarchical all-reduce. The message is cut into as many columns as the largest host has ranks, and each column
// into a block for each host. On every host one rank leads a column, so the ranks of a host share the work between
// hosts.
//   1. Inside the host: each rank publishes its input, and the leader of a column adds it over the ranks of the host.
//   2. Between hosts: the leader puts the sum of each block into partials of the leader on the block's host, which
//      adds the sums over the hosts.
//   3. Between hosts: that leader puts the finished block into the scratch of the column's other leaders.
//   4. Inside the host: all ranks copy the finished blocks from the leaders' scratch.
// Rounds overlap, so one slice is between the hosts while the next is added inside them. Sums travel in partials. It
// follows the canonical tree, and therefore requires hosts that are subtrees of it. The paper is "Scalable reduction
// collectives with data partitioning-based multi-leader design".

#include "plan/algorithms.hpp"
#include "plan/algorithms/host_tree.hpp"

namespace accord::plan {
namespace {

Result<Plan> all_reduce_hierarchical(const topology::Topology& topology, const Request& request) {
  ACCORD_RETURN_IF_ERROR(check_hosts_are_subtrees(topology, "hierarchical all_reduce"));
  const HostColumns tree(topology);
  const int hosts = tree.hosts(), columns = tree.columns(), blocks = columns * hosts;
  const auto block_of = [&](int column, int host) { return column * hosts + host; };
  // Signals: a column is published (inside a host) or a sum has arrived (between hosts); its blocks are finished.
  const auto ready_id = [](int column) { return column; };
  const auto done_id = [&](int column) { return columns + column; };
  PlanBuilder plan("hierarchical", request, topology.size(),
                   {.input_chunks = blocks,
                    .output_chunks = blocks,
                    .scratch_chunks = tree.has_single() ? 2 * blocks : blocks,
                    .partial_chunks = hosts == 1 ? 0 : 2 * blocks});
  plan.set_order(Order::kCanonical);
  plan.set_pacing(Pacing::kByPlan);
  for (const Rank rank : plan.ranks()) {
    const int host = topology.host_of(rank);
    const std::vector<Rank>& near = topology.ranks_of_host(host);
    const auto others = [&](auto use) {
      for (const Rank peer : near)
        if (peer != rank) use(peer);
    };
    for (int column = 0; column < columns; ++column) {
      const Rank leader = tree.leader(column, host);
      if (leader == rank) continue;
      for (int to = 0; to < hosts; ++to)
        plan.on(rank).copy(input(rank, block_of(column, to)), {scratch(rank, block_of(column, to))});
      plan.on(rank).signal(leader, ready_id(column));
    }
    // This host's sum of the block of host `to`; for the own host it is added to the others' sums later.
    const auto own_sum = [&](int column, int to) { return partials(rank, blocks + block_of(column, to)); };
    for (int column = 0; column < columns; ++column) {
      if (tree.leader(column, host) != rank) continue;
      others([&](Rank peer) { plan.on(rank).wait(peer, ready_id(column)); });
      for (int step = 1; step <= hosts; ++step) {
        const int to = (host + step) % hosts, block = block_of(column, to);
        std::vector<Chunk> sources;
        sources.reserve(near.size());
        for (const Rank peer : near) sources.push_back(peer == rank ? input(rank, block) : scratch(peer, block));
        if (hosts == 1) {
          plan.on(rank).reduce(std::move(sources), {output(rank, block), scratch(rank, block)});
        } else if (near.size() > 1) {
          plan.on(rank).reduce(std::move(sources), {own_sum(column, to)});
        }
        if (to == host) continue;
        const Rank there = tree.leader(column, to);
        plan.on(rank)
            .copy(tree.is_single(host) ? input(rank, block) : own_sum(column, to),
                  {tree.arrival(there, host, block_of(column, host), blocks)})
            .signal(there, ready_id(column));
      }
    }
    for (int column = 0; column < columns && hosts > 1; ++column) {
      if (tree.leader(column, host) != rank) continue;
      const int block = block_of(column, host);
      std::vector<Chunk> sources;
      for (const int from : tree.senders_to(host)) plan.on(rank).wait(tree.leader(column, from), ready_id(column));
      for (int from = 0; from < hosts; ++from) {
        if (from == host) {
          sources.push_back(tree.is_single(host) ? input(rank, block) : own_sum(column, host));
        } else {
          sources.push_back(tree.arrival(rank, from, block_of(column, from), blocks));
        }
      }
      plan.on(rank).reduce(std::move(sources), {output(rank, block), scratch(rank, block)});
    }
    for (int column = 0; column < columns; ++column) {
      if (tree.leader(column, host) != rank) continue;
      const int block = block_of(column, host);
      for (int step = 1; step < hosts; ++step) {
        const Rank there = tree.leader(column, (host + step) % hosts);
        plan.on(rank).copy(output(rank, block), {scratch(there, block)}).signal(there, done_id(column));
      }
    }
    for (int column = 0; column < columns; ++column) {
      if (tree.leader(column, host) != rank) continue;
      for (const int from : tree.senders_to(host)) plan.on(rank).wait(tree.leader(column, from), done_id(column));
      others([&](Rank peer) { plan.on(rank).signal(peer, done_id(column)); });
    }
    for (int column = 0; column < columns; ++column) {
      const Rank leader = tree.leader(column, host);
      if (leader != rank) plan.on(rank).wait(leader, done_id(column));
      for (int from = 0; from < hosts; ++from) {
        const int block = block_of(column, from);
        if (leader != rank || from != host) plan.on(rank).copy(scratch(leader, block), {output(rank, block)});
      }
    }
  }
  return std::move(plan).build();
}

}  // namespace

AlgorithmEntry all_reduce_hierarchical_entry() {
  return {.collective = Collective::kAllReduce,
          .name = "hierarchical",
          .make = all_reduce_hierarchical,
          .order = Order::kCanonical,
          .fits = is_hierarchy,
          .spans_hosts = true,
          .adds_in_parts = true,
          .description = {
              .steps = "4",
              .bytes = "between hosts: 2 (h - 1)/h M for each host",
              .selected = "several hosts that are subtrees of the canonical tree, from 8 KB; from 17 ranks: all sizes",
              .source = "multi-leader; Bayatpour and others 2017"}};
}

}  // namespace accord::plan
