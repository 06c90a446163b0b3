// Two-shot all-reduce on buffers in windows: once all ranks have arrived, each adds its own chunk over the inputs of
// all, in rank order, and writes the sum into the outputs of all. No other rank reads that chunk of any input, so it
// works in place. Signals say that all have arrived and that all sums are written. The two-shot algorithm over the
// memory channels of MSCCL++.

#include "plan/algorithms.hpp"
#include "plan/algorithms/exchange.hpp"

namespace accord::plan {
namespace {

Result<Plan> all_reduce_two_shot_zero_copy(const topology::Topology& topology, const Request& request) {
  const int size = topology.size();
  PlanBuilder plan("two_shot_zero_copy", request, size, {.input_chunks = size, .output_chunks = size});
  plan.set_order(Order::kCanonical);
  plan.set_pacing(Pacing::kByPlan);
  plan.set_buffers(Buffers::kInWindows);
  for (const Rank rank : plan.ranks()) {
    const std::vector<Rank> peers = peers_of(rank, size);
    sync_peers(plan, rank, size, kBuffersReady);
    std::vector<Chunk> sums = {output(rank, rank)};
    if (size > 1) sums.push_back(output(peers[0], rank));
    plan.on(rank).reduce(inputs_of_all(size, rank), std::move(sums));
    for (std::size_t i = 1; i < peers.size(); ++i) plan.on(rank).copy(output(rank, rank), {output(peers[i], rank)});
    sync_peers(plan, rank, size, kBuffersDone);
  }
  return std::move(plan).build();
}

}  // namespace

AlgorithmEntry all_reduce_two_shot_zero_copy_entry() {
  return {.collective = Collective::kAllReduce,
          .name = "two_shot_zero_copy",
          .make = all_reduce_two_shot_zero_copy,
          .order = Order::kCanonical,
          .buffers = Buffers::kInWindows,
          .description = {.steps = "2",
                          .bytes = "2 (n - 1)/n M",
                          .selected = "registered, from 2 KB; GPUs: up to 8 ranks, 16 KB to 8 MB",
                          .source = "Thakur, Rabenseifner, Gropp 2005, section 4.5"}};
}

}  // namespace accord::plan
