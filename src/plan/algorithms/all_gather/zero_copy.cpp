// All-gather on buffers in windows: once all ranks have arrived, each copies the inputs of all into its output. In
// place, a rank's input is its own part of the output, which only others read. Signals say that all have arrived and
// that all have read.

#include "plan/algorithms.hpp"
#include "plan/algorithms/exchange.hpp"

namespace accord::plan {
namespace {

Result<Plan> all_gather_zero_copy(const topology::Topology& topology, const Request& request) {
  const int size = topology.size();
  PlanBuilder plan("zero_copy", request, size, {.input_chunks = 1, .output_chunks = size});
  plan.set_pacing(Pacing::kByPlan);
  plan.set_buffers(Buffers::kInWindows);
  for (const Rank rank : plan.ranks()) {
    for (const Rank peer : peers_of(rank, size)) plan.on(rank).signal(peer, kBuffersReady);
    plan.on(rank).copy(input(rank, 0), {output(rank, rank)});
    for (const Rank peer : peers_of(rank, size)) {
      plan.on(rank).wait(peer, kBuffersReady).copy(input(peer, 0), {output(rank, peer)}).signal(peer, kBuffersDone);
    }
    for (const Rank peer : peers_of(rank, size)) plan.on(rank).wait(peer, kBuffersDone);
  }
  return std::move(plan).build();
}

}  // namespace

AlgorithmEntry all_gather_zero_copy_entry() {
  return {.collective = Collective::kAllGather,
          .name = "zero_copy",
          .make = all_gather_zero_copy,
          .buffers = Buffers::kInWindows,
          .only_reads = true,
          .description = {.steps = "2",
                          .bytes = "(n - 1)/n M",
                          .selected = "registered, from 2 KB; else from 64 KB to 4 MB",
                          .source = "direct exchange; Thakur, Rabenseifner, Gropp 2005"}};
}

}  // namespace accord::plan
