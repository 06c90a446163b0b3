// Hierarchical all-to-all.
//   1. Inside the host: ranks hand over the parts for each other, and the parts for a rank of another host to its
//      counterpart on their own host.
//   2. Between hosts: the counterpart puts the parts of its whole host into the scratch of the rank that they are for,
//      in one message.
// This works in place, since a rank has copied all its parts before it receives the first. A rank sends one message to
// each other host, if hosts are equal. The paper is "MPI collectives and datatypes for hierarchical all-to-all
// communication".

#include <algorithm>

#include "plan/algorithms.hpp"
#include "plan/algorithms/exchange.hpp"
#include "plan/algorithms/host_tree.hpp"

namespace accord::plan {
namespace {

/// How the ranks of one host relay for each other: which rank relays which parts, and where they are stored in
/// between.
class Relays {
 public:
  Relays(const topology::Topology& topology, const HostColumns& tree, int host)
      : tree_(tree), host_(host), turns_(static_cast<std::size_t>(topology.size())) {
    const auto& near = topology.ranks_of_host(host);
    std::vector<int> busy(near.size());
    for (const Rank rank : topology.ranks())
      if (topology.host_of(rank) != host)
        turns_[static_cast<std::size_t>(rank)] = busy[static_cast<std::size_t>(tree.column_of(rank)) % near.size()]++;
    chunks_ = *std::max_element(busy.begin(), busy.end()) * static_cast<int>(near.size());
    near_ = static_cast<int>(near.size());
  }
  int chunks() const { return chunks_; }
  Rank for_rank(Rank to) const { return tree_.leader(tree_.column_of(to), host_); }
  /// The one of chunks() that holds the part from `from` to `to`.
  int chunk(Rank from, Rank to) const { return turns_[static_cast<std::size_t>(to)] * near_ + tree_.column_of(from); }

 private:
  const HostColumns& tree_;
  int host_;
  int near_ = 0;
  int chunks_ = 0;
  std::vector<int> turns_;
};

Result<Plan> all_to_all_hierarchical(const topology::Topology& topology, const Request& request) {
  const HostColumns tree(topology);
  const int size = topology.size(), hosts = tree.hosts();
  std::vector<Relays> relays;
  int chunks = 0;
  for (int host = 0; host < hosts; ++host)
    chunks = std::max(chunks, relays.emplace_back(topology, tree, host).chunks());
  PlanBuilder plan("hierarchical", request, size,
                   {.input_chunks = size, .output_chunks = size, .scratch_chunks = size + chunks});
  plan.set_pacing(Pacing::kByPlan);
  for (const Rank rank : plan.ranks()) {
    const int host = topology.host_of(rank);
    const std::vector<Rank>& near = topology.ranks_of_host(host);
    const Relays& own = relays[static_cast<std::size_t>(host)];
    for (const Rank peer : peers_of(rank, size)) {
      const bool is_near = share_host(topology, rank, peer);
      const Rank relay = is_near ? peer : own.for_rank(peer);
      plan.on(rank).copy(input(rank, peer),
                         {is_near ? scratch(rank, peer) : scratch(relay, size + own.chunk(rank, peer))});
      if (relay != rank) plan.on(rank).signal(relay, is_near ? 0 : 1 + peer);
    }
    plan.on(rank).copy(input(rank, rank), {output(rank, rank)});
    for (const Rank to : peers_of(rank, size)) {
      if (share_host(topology, rank, to) || own.for_rank(to) != rank) continue;
      for (const Rank from : near) {
        if (from != rank) plan.on(rank).wait(from, 1 + to);
        plan.on(rank).copy(scratch(rank, size + own.chunk(from, to)), {scratch(to, from)});
      }
      plan.on(rank).signal(to);
    }
    for (const Rank peer : peers_of(rank, size))
      if (share_host(topology, rank, peer)) plan.on(rank).wait(peer).copy(scratch(peer, rank), {output(rank, peer)});
    for (int step = 1; step < hosts; ++step) {
      const int from = (host + step) % hosts;
      plan.on(rank).wait(relays[static_cast<std::size_t>(from)].for_rank(rank));
      for (const Rank peer : topology.ranks_of_host(from))
        plan.on(rank).copy(scratch(rank, peer), {output(rank, peer)});
    }
  }
  return std::move(plan).build();
}

}  // namespace

AlgorithmEntry all_to_all_hierarchical_entry() {
  return {.collective = Collective::kAllToAll,
          .name = "hierarchical",
          .make = all_to_all_hierarchical,
          .fits = shares_hosts,
          .spans_hosts = true,
          .description = {.steps = "2",
                          .bytes = "(n - 1)/n M, plus a second copy inside the host of what crosses hosts; between "
                                   "hosts: one message to each other host",
                          .selected = "several hosts, at least one with several ranks, from 17 ranks: below 4 KB",
                          .source = "two levels; Traff, Rougier 2014"}};
}

}  // namespace accord::plan
