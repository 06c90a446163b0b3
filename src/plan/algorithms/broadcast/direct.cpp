// Direct broadcast: the root copies its buffer to its scratch and signals all; they copy it from there. On other hosts
// the first rank receives it and signals the rest. Rounds overlap: the root fills one slot while the others empty the
// previous one. The root writes the message once.

#include "plan/algorithms.hpp"
#include "plan/algorithms/exchange.hpp"

namespace accord::plan {
namespace {

Result<Plan> broadcast_direct(const topology::Topology& topology, const Request& request) {
  const Rank root = request.root;
  PlanBuilder plan("direct", request, topology.size(), {.input_chunks = 1, .output_chunks = 1, .scratch_chunks = 1});
  const auto first_of = [&](int host) {
    return host == topology.host_of(root) ? root : topology.ranks_of_host(host).front();
  };
  for (const Rank rank : plan.ranks()) {
    const Rank first = first_of(topology.host_of(rank));
    if (rank == root && topology.size() > 1) {
      for (int host = 0; host < topology.host_count(); ++host) {
        const Rank other = first_of(host);
        if (other != root) plan.on(root).copy(input(root, 0), {scratch(other, 0)}).signal(other);
      }
      plan.on(root).copy(input(root, 0), {scratch(root, 0)});
    } else if (rank == first && rank != root) {
      plan.on(rank).wait(root);
    }
    if (rank == first) {
      for (const Rank peer : peers_of(rank, topology.size()))
        if (share_host(topology, rank, peer)) plan.on(rank).signal(peer);
    } else {
      plan.on(rank).wait(first);
    }
    if (rank != root) plan.on(rank).copy(scratch(first, 0), {output(rank, 0)});
  }
  return std::move(plan).build();
}

}  // namespace

AlgorithmEntry broadcast_direct_entry() {
  return {.collective = Collective::kBroadcast,
          .name = "direct",
          .make = broadcast_direct,
          .spans_hosts = true,
          .description = {.steps = "1",
                          .bytes = "M",
                          .selected = "from 256 B; several hosts: from 2 KB; from 17 ranks: below 16 KB",
                          .source = "flat tree; Graham, Shipman 2008"}};
}

}  // namespace accord::plan
