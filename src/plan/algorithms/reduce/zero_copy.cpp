// Reduce on buffers in windows: the root adds the inputs of all ranks in place, in rank order. Signals say that all
// have arrived and that the root has read.

#include "plan/algorithms.hpp"
#include "plan/algorithms/exchange.hpp"

namespace accord::plan {
namespace {

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

}  // namespace

AlgorithmEntry reduce_zero_copy_entry() {
  return {.collective = Collective::kReduce,
          .name = "zero_copy",
          .make = reduce_zero_copy,
          .order = Order::kCanonical,
          .buffers = Buffers::kInWindows,
          .description = {.steps = "2",
                          .bytes = "(n - 1) M by the root",
                          .selected = "registered, from 2 KB",
                          .source = "flat tree; Graham, Shipman 2008"}};
}

}  // namespace accord::plan
