// Direct gather: each rank publishes its buffer to the root, which copies all of them.
// Steps: 1. Moved: each rank's part once written and once read. Flat tree, Graham and Shipman 2008.

#include "plan/algorithms/catalog.hpp"

namespace accord::plan {

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

}  // namespace accord::plan
