// Direct all-gather: each rank publishes its part in its scratch and copies all other parts from their owners'
// scratch. To each other host it puts its part once, into the scratch of one rank there (chosen in turn), from which
// all ranks of that host copy it.

#include "plan/algorithms.hpp"
#include "plan/algorithms/exchange.hpp"

namespace accord::plan {
namespace {

Result<Plan> all_gather_direct(const topology::Topology& topology, const Request& request) {
  const int size = topology.size();
  PlanBuilder plan("direct", request, size,
                   {.input_chunks = 1, .output_chunks = size, .scratch_chunks = published_chunks(topology)});
  plan.set_pacing(Pacing::kByPlan);
  // The rank that holds the part of `owner` on the host of `reader`; if it is not the owner, signal 1 + owner reports
  // that it has the part.
  const auto holder = [&](Rank owner, Rank reader) {
    if (share_host(topology, owner, reader)) return owner;
    const auto& ranks = topology.ranks_of_host(topology.host_of(reader));
    return ranks[static_cast<std::size_t>(owner) % ranks.size()];
  };
  for (const Rank rank : plan.ranks()) {
    std::vector<Rank> readers, far;
    for (const Rank peer : peers_of(rank, size)) {
      if (holder(rank, peer) == rank || holder(rank, peer) == peer) readers.push_back(peer);
      if (!share_host(topology, rank, peer)) far.push_back(peer);
    }
    publish(plan, topology, rank, input(rank, 0), readers);
    plan.on(rank).copy(input(rank, 0), {output(rank, rank)});
    for (const Rank owner : far) {
      if (holder(owner, rank) != rank) continue;
      plan.on(rank).wait(owner);
      for (const Rank peer : peers_of(rank, size))
        if (share_host(topology, rank, peer)) plan.on(rank).signal(peer, 1 + owner);
    }
    for (const Rank owner : peers_of(rank, size)) {
      const Rank at = holder(owner, rank);
      if (at != rank) plan.on(rank).wait(at, at == owner ? 0 : 1 + owner);
      plan.on(rank).copy(at == rank ? published_chunk(topology, owner, rank) : published_chunk(topology, owner, at),
                         {output(rank, owner)});
    }
  }
  return std::move(plan).build();
}

}  // namespace

AlgorithmEntry all_gather_direct_entry() {
  return {.collective = Collective::kAllGather,
          .name = "direct",
          .make = all_gather_direct,
          .spans_hosts = true,
          .description = {.steps = "1",
                          .bytes = "(n - 1)/n M",
                          .selected = "from 256 B; several hosts: from 2 KB",
                          .source = "direct exchange; Thakur, Rabenseifner, Gropp 2005"}};
}

}  // namespace accord::plan
