// All-to-all on buffers in windows: each rank copies its part of every input into its output as soon as the input's
// rank has arrived. In place it would overwrite data that others still read. Signals say that a rank has arrived and
// that all have read.

#include "plan/algorithms.hpp"
#include "plan/algorithms/exchange.hpp"

namespace accord::plan {
namespace {

Result<Plan> all_to_all_zero_copy(const topology::Topology& topology, const Request& request) {
  const int size = topology.size();
  PlanBuilder plan("zero_copy", request, size, {.input_chunks = size, .output_chunks = size});
  plan.set_pacing(Pacing::kByPlan);
  plan.set_buffers(Buffers::kInWindowsApart);
  for (const Rank rank : plan.ranks()) {
    for (const Rank peer : peers_of(rank, size)) plan.on(rank).signal(peer, kBuffersReady);
    plan.on(rank).copy(input(rank, rank), {output(rank, rank)});
    for (const Rank peer : peers_of(rank, size)) {
      plan.on(rank).wait(peer, kBuffersReady).copy(input(peer, rank), {output(rank, peer)}).signal(peer, kBuffersDone);
    }
    for (const Rank peer : peers_of(rank, size)) plan.on(rank).wait(peer, kBuffersDone);
  }
  return std::move(plan).build();
}

}  // namespace

AlgorithmEntry all_to_all_zero_copy_entry() {
  return {.collective = Collective::kAllToAll,
          .name = "zero_copy",
          .make = all_to_all_zero_copy,
          .buffers = Buffers::kInWindowsApart,
          .only_reads = true,
          .description = {.steps = "2",
                          .bytes = "(n - 1)/n M",
                          .selected = "registered, from 2 KB; else for parts of 64 KB to 2 MB",
                          .source = "direct exchange; Thakur, Rabenseifner, Gropp 2005"}};
}

}  // namespace accord::plan
