// Hierarchical broadcast. The message is cut into as many columns as the largest host has ranks, and each column into
// a block for each host except the root's; on every host one rank leads a column.
//   1. Inside the root's host: the root publishes its buffer, and all copy it.
//   2. Between hosts: the leader of a column there puts each block into the scratch of the leader on the block's host,
//   3. which puts it into the scratch of the leaders on the other hosts: each byte reaches each host once, and no host
//      sends more than M.
//   4. Inside the other hosts: all ranks copy the blocks from the leaders' scratch.
// The scatter and all-gather is that of Barnett, van de Geijn and others 1994.

#include <algorithm>

#include "plan/algorithms.hpp"
#include "plan/algorithms/host_tree.hpp"

namespace accord::plan {
namespace {

Result<Plan> broadcast_hierarchical(const topology::Topology& topology, const Request& request) {
  const HostColumns tree(topology);
  const Rank root = request.root;
  const int hosts = tree.hosts(), columns = tree.columns(), root_host = topology.host_of(root);
  const int turns = std::max(1, hosts - 1);
  // Host `root_host + turn` has the blocks of `turn`. Signals: `column` between hosts, `turn` inside.
  const auto host_at = [&](int turn) { return (root_host + turn) % hosts; };
  const auto block_of = [&](int column, int turn) { return column * turns + turn - 1; };
  PlanBuilder plan(
      "hierarchical", request, topology.size(),
      {.input_chunks = columns * turns, .output_chunks = columns * turns, .scratch_chunks = columns * turns});
  for (const Rank rank : plan.ranks()) {
    const int host = topology.host_of(rank), my_turn = (host + hosts - root_host) % hosts;
    const std::vector<Rank>& near = topology.ranks_of_host(host);
    const auto leads = [&](int column) { return tree.leader(column, host) == rank; };
    const auto put = [&](Chunk source, int column, int to) {
      const Rank there = tree.leader(column, host_at(to));
      plan.on(rank).copy(source, {scratch(there, source.index)}).signal(there, column);
    };
    const auto notify_others = [&](int turn) {
      for (const Rank peer : near)
        if (peer != rank) plan.on(rank).signal(peer, turn);
    };
    for (int turn = 1; turn <= turns && host == root_host; ++turn) {
      if (rank != root) plan.on(rank).wait(root, turn);
      for (int column = 0; column < columns; ++column) {
        const int block = block_of(column, turn);
        if (rank != root) {
          plan.on(rank).copy(scratch(root, block), {output(rank, block)});
        } else if (near.size() > 1) {
          plan.on(root).copy(input(root, block), {scratch(root, block)});
        }
      }
      if (rank == root) notify_others(turn);
      for (int column = 0; column < columns && hosts > 1; ++column)
        if (const int block = block_of(column, turn); leads(column))
          put(rank == root ? input(root, block) : output(rank, block), column, turn);
    }
    for (int step = 0; step < turns && host != root_host; ++step) {
      const int turn = (my_turn - 1 + step) % turns + 1;  // the own turn first: other hosts wait for it
      for (int column = 0; column < columns; ++column) {
        if (!leads(column)) continue;
        plan.on(rank).wait(tree.leader(column, turn == my_turn ? root_host : host_at(turn)), column);
        for (int to = 1; to <= turns && turn == my_turn; ++to)
          if (to != my_turn) put(scratch(rank, block_of(column, turn)), column, to);
      }
      notify_others(turn);
      for (const Rank peer : near)
        if (peer != rank) plan.on(rank).wait(peer, turn);
      for (int column = 0; column < columns; ++column)
        plan.on(rank).copy(scratch(tree.leader(column, host), block_of(column, turn)),
                           {output(rank, block_of(column, turn))});
    }
  }
  return std::move(plan).build();
}

}  // namespace

AlgorithmEntry broadcast_hierarchical_entry() {
  return {.collective = Collective::kBroadcast,
          .name = "hierarchical",
          .make = broadcast_hierarchical,
          .fits = shares_hosts,
          .spans_hosts = true,
          .description = {
              .steps = "4; 3 for two hosts",
              .bytes = "M; between hosts: M by the root's host, (h - 2)/(h - 1) M by each other host",
              .selected = "several hosts, at least one with several ranks, from 1 MB; from 17 ranks: from 16 KB",
              .source = "two levels; Karonis, de Supinski, Foster and others 2000"}};
}

}  // namespace accord::plan
