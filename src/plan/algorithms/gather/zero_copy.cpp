// Gather on buffers in windows: the root copies each input in place, as soon as its rank has arrived. Signals say that
// a rank has arrived and that the root has read.

#include "plan/algorithms.hpp"
#include "plan/algorithms/exchange.hpp"

namespace accord::plan {
namespace {

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

}  // namespace

AlgorithmEntry gather_zero_copy_entry() {
  return {.collective = Collective::kGather,
          .name = "zero_copy",
          .make = gather_zero_copy,
          .buffers = Buffers::kInWindows,
          .only_reads = true,
          .description = {.steps = "2",
                          .bytes = "(n - 1)/n M by the root",
                          .selected = "registered, from 2 KB",
                          .source = "flat tree; Graham, Shipman 2008"}};
}

}  // namespace accord::plan
