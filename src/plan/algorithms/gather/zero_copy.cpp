// Gather on buffers in windows: the root copies each input in place, as soon as its rank has arrived.
// Steps: 2 (a rank has arrived; the root has read). Moved by the root: (n - 1)/n of the message. Flat tree, Graham
// and Shipman 2008.

#include "plan/algorithms/catalog.hpp"

namespace accord::plan {

Result<Plan> gather_zero_copy(const topology::Topology& topology, const Request& request) {
  const int size = topology.size();
  const Rank root = request.root;
  PlanBuilder plan("zero_copy", request, size, {.input_chunks = 1, .output_chunks = size});
  plan.set_buffers(Buffers::kInWindows);
  for (const Rank rank : plan.ranks()) {
    if (rank != root) {
      plan.on(rank).signal(root, kBuffersReady).wait(root, kBuffersDone);
      continue;
    }
    plan.on(root).copy(input(root, 0), {output(root, root)});
    for (const Rank peer : peers_of(root, size)) {
      plan.on(root).wait(peer, kBuffersReady).copy(input(peer, 0), {output(root, peer)}).signal(peer, kBuffersDone);
    }
  }
  return std::move(plan).build();
}

}  // namespace accord::plan
