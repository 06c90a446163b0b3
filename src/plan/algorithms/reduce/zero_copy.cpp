// Reduce on buffers in windows: the root adds the inputs of all ranks in place, in rank order.
// Steps: 2 (all have arrived; the root has read). Moved by the root: n - 1 times the message. Flat tree, Graham and
// Shipman 2008.

#include "plan/algorithms/catalog.hpp"

namespace accord::plan {

Result<Plan> reduce_zero_copy(const topology::Topology& topology, const Request& request) {
  const int size = topology.size();
  const Rank root = request.root;
  PlanBuilder plan("zero_copy", request, size, {.input_chunks = 1, .output_chunks = 1});
  plan.set_order(Order::kCanonical);
  plan.set_buffers(Buffers::kInWindows);
  for (const Rank rank : plan.ranks()) {
    if (rank != root) {
      plan.on(rank).signal(root, kBuffersReady).wait(root, kBuffersDone);
      continue;
    }
    for (const Rank peer : peers_of(root, size)) plan.on(root).wait(peer, kBuffersReady);
    plan.on(root).reduce(inputs_of_all(size, 0), {output(root, 0)});
    for (const Rank peer : peers_of(root, size)) plan.on(root).signal(peer, kBuffersDone);
  }
  return std::move(plan).build();
}

}  // namespace accord::plan
