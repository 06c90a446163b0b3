// Scatter on buffers in windows: each rank copies its part of the root's input in place; the root waits until all
// have. Signals say that the root has arrived and that all have read.

#include "plan/algorithms.hpp"
#include "plan/algorithms/exchange.hpp"

namespace accord::plan {
namespace {

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

}  // namespace

AlgorithmEntry scatter_zero_copy_entry() {
  return {.collective = Collective::kScatter,
          .name = "zero_copy",
          .make = scatter_zero_copy,
          .buffers = Buffers::kInWindows,
          .only_reads = true,
          .description = {.steps = "2",
                          .bytes = "M/n",
                          .selected = "registered, from 2 KB",
                          .source = "flat tree; Graham, Shipman 2008"}};
}

}  // namespace accord::plan
