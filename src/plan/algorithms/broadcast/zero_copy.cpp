// Broadcast on buffers in windows: each rank copies the root's buffer in place; the root waits until all have.
// Steps: 2 (the root has arrived; all have read). Moved per rank: the message once. Flat tree, Graham and Shipman
// 2008.

#include "plan/algorithms/catalog.hpp"

namespace accord::plan {

Result<Plan> broadcast_zero_copy(const topology::Topology& topology, const Request& request) {
  const Rank root = request.root;
  PlanBuilder plan("zero_copy", request, topology.size(), {.input_chunks = 1, .output_chunks = 1});
  plan.set_buffers(Buffers::kInWindows);
  for (const Rank rank : plan.ranks()) {
    if (rank != root) {
      plan.on(rank).wait(root, kBuffersReady).copy(input(root, 0), {output(rank, 0)}).signal(root, kBuffersDone);
      continue;
    }
    for (const Rank peer : peers_of(root, topology.size())) plan.on(root).signal(peer, kBuffersReady);
    for (const Rank peer : peers_of(root, topology.size())) plan.on(root).wait(peer, kBuffersDone);
  }
  return std::move(plan).build();
}

}  // namespace accord::plan
