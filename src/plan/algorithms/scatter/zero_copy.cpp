// Scatter on buffers in windows: each rank copies its part of the root's input in place; the root waits until all
// have.
// Steps: 2 (the root has arrived; all have read). Moved per rank: 1/n of the message. Flat tree, Graham and Shipman
// 2008.

#include "plan/algorithms/catalog.hpp"

namespace accord::plan {

Result<Plan> scatter_zero_copy(const topology::Topology& topology, const Request& request) {
  const int size = topology.size();
  const Rank root = request.root;
  PlanBuilder plan("zero_copy", request, size, {.input_chunks = size, .output_chunks = 1});
  plan.set_buffers(Buffers::kInWindows);
  for (const Rank rank : plan.ranks()) {
    if (rank != root) {
      plan.on(rank).wait(root, kBuffersReady).copy(input(root, rank), {output(rank, 0)}).signal(root, kBuffersDone);
      continue;
    }
    for (const Rank peer : peers_of(root, size)) plan.on(root).signal(peer, kBuffersReady);
    plan.on(root).copy(input(root, root), {output(root, 0)});
    for (const Rank peer : peers_of(root, size)) plan.on(root).wait(peer, kBuffersDone);
  }
  return std::move(plan).build();
}

}  // namespace accord::plan
