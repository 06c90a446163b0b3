// Direct scatter: the root hands over all parts, and each rank copies its own.

#include "plan/algorithms.hpp"
#include "plan/algorithms/exchange.hpp"

namespace accord::plan {
namespace {

Result<Plan> scatter_direct(const topology::Topology& topology, const Request& request) {
  const Rank root = request.root;
  const int size = topology.size();
  PlanBuilder plan("direct", request, size, {.input_chunks = size, .output_chunks = 1, .scratch_chunks = size});
  for (const Rank rank : plan.ranks()) {
    if (rank != root) {
      plan.on(rank).wait(root).copy(handover(topology, root, rank), {output(rank, 0)});
      continue;
    }
    for (const Rank peer : peers_of(root, size)) {
      plan.on(root).copy(input(root, peer), {handover(topology, root, peer)}).signal(peer);
    }
    plan.on(root).copy(input(root, root), {output(root, 0)});
  }
  return std::move(plan).build();
}

}  // namespace

AlgorithmEntry scatter_direct_entry() {
  return {.collective = Collective::kScatter,
          .name = "direct",
          .make = scatter_direct,
          .spans_hosts = true,
          .description = {.steps = "1",
                          .bytes = "M/n",
                          .selected = "from 256 B; several hosts: from 2 KB",
                          .source = "flat tree; Graham, Shipman 2008"}};
}

}  // namespace accord::plan
