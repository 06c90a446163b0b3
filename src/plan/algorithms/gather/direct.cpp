// Direct gather: each rank publishes its buffer to the root, which copies all of them.

#include "plan/algorithms.hpp"
#include "plan/algorithms/exchange.hpp"

namespace accord::plan {
namespace {

Result<Plan> gather_direct(const topology::Topology& topology, const Request& request) {
  const Rank root = request.root;
  const int size = topology.size();
  PlanBuilder plan("direct", request, size,
                   {.input_chunks = 1, .output_chunks = size, .scratch_chunks = published_chunks(topology)});
  for (const Rank rank : plan.ranks()) {
    if (rank != root) {
      publish(plan, topology, rank, input(rank, 0), {root});
      continue;
    }
    plan.on(root).copy(input(root, 0), {output(root, root)});
    for (const Rank peer : peers_of(root, size))
      plan.on(root).wait(peer).copy(published_chunk(topology, peer, root), {output(root, peer)});
  }
  return std::move(plan).build();
}

}  // namespace

AlgorithmEntry gather_direct_entry() {
  return {.collective = Collective::kGather,
          .name = "direct",
          .make = gather_direct,
          .spans_hosts = true,
          .description = {.steps = "1",
                          .bytes = "(n - 1)/n M by the root",
                          .selected = "from 256 B; several hosts: from 2 KB",
                          .source = "flat tree; Graham, Shipman 2008"}};
}

}  // namespace accord::plan
