// Broadcast on buffers in windows: each rank copies the root's buffer in place; the root waits until all have. Signals
// say that the root has arrived and that all have read.

#include "plan/algorithms.hpp"
#include "plan/algorithms/exchange.hpp"

namespace accord::plan {
namespace {

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

}  // namespace

AlgorithmEntry broadcast_zero_copy_entry() {
  return {.collective = Collective::kBroadcast,
          .name = "zero_copy",
          .make = broadcast_zero_copy,
          .buffers = Buffers::kInWindows,
          .only_reads = true,
          .description = {.steps = "2",
                          .bytes = "M",
                          .selected = "registered, from 2 KB",
                          .source = "flat tree; Graham, Shipman 2008"}};
}

}  // namespace accord::plan
