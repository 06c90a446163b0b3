// Direct scatter: the root hands over all parts, and each rank copies its own.
// Steps: 1. Moved: each rank's part once written, by the root, and once read. Flat tree, Graham and Shipman 2008.

#include "plan/algorithms/catalog.hpp"

namespace accord::plan {

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

}  // namespace accord::plan
