// Direct broadcast: the root copies its buffer to its scratch and signals all; they copy it from there. Rounds overlap: the
// root fills one slot while the others empty the one before.
// Steps: 1. Moved per rank: the message once; the root writes it once. Flat tree, Graham and Shipman 2008.

#include "plan/algorithms/catalog.hpp"

namespace accord::plan {

Result<Plan> broadcast_direct(const topology::Topology& topology, const Request& request) {
  const Rank root = request.root;
  PlanBuilder plan("direct", request, topology.size(), {.input_chunks = 1, .output_chunks = 1, .scratch_chunks = 1});
  for (const Rank rank : plan.ranks()) {
    if (rank != root) {
      plan.on(rank).wait(root).copy(scratch(root, 0), {output(rank, 0)});
    } else if (topology.size() > 1) {
      plan.on(root).copy(input(root, 0), {scratch(root, 0)});
      for (const Rank peer : peers_of(root, topology.size())) plan.on(root).signal(peer);
    }
  }
  return std::move(plan).build();
}

}  // namespace accord::plan
