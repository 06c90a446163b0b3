// Reduce-scatter on buffers in windows: once all ranks have arrived, each adds its own part over the inputs of all, in
// rank order. In place, the sum is stored where only this rank reads. Signals say that all have arrived and that all
// have read.

#include "plan/algorithms.hpp"
#include "plan/algorithms/exchange.hpp"

namespace accord::plan {
namespace {

Result<Plan> reduce_scatter_zero_copy(const topology::Topology& topology, const Request& request) {
  const int size = topology.size();
  PlanBuilder plan("zero_copy", request, size, {.input_chunks = size, .output_chunks = 1});
  plan.set_order(Order::kCanonical);
  plan.set_pacing(Pacing::kByPlan);
  plan.set_buffers(Buffers::kInWindows);
  for (const Rank rank : plan.ranks()) {
    sync_peers(plan, rank, size, kBuffersReady);
    plan.on(rank).reduce(inputs_of_all(size, rank), {output(rank, 0)});
    sync_peers(plan, rank, size, kBuffersDone);
  }
  return std::move(plan).build();
}

}  // namespace

AlgorithmEntry reduce_scatter_zero_copy_entry() {
  return {.collective = Collective::kReduceScatter,
          .name = "zero_copy",
          .make = reduce_scatter_zero_copy,
          .order = Order::kCanonical,
          .buffers = Buffers::kInWindows,
          .description = {.steps = "2",
                          .bytes = "(n - 1)/n M",
                          .selected = "registered, from 2 KB",
                          .source = "direct exchange; Thakur, Rabenseifner, Gropp 2005"}};
}

}  // namespace accord::plan
