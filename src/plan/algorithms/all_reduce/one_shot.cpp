// One-shot all-reduce: each rank publishes its whole buffer to all others and adds all buffers, in rank order.

#include "plan/algorithms.hpp"
#include "plan/algorithms/exchange.hpp"

namespace accord::plan {
namespace {

Result<Plan> all_reduce_one_shot(const topology::Topology& topology, const Request& request) {
  const int size = topology.size();
  PlanBuilder plan("one_shot", request, size,
                   {.input_chunks = 1, .output_chunks = 1, .scratch_chunks = published_chunks(topology)});
  plan.set_order(Order::kCanonical);
  plan.set_pacing(Pacing::kByPlan);
  for (const Rank rank : plan.ranks()) {
    publish(plan, topology, rank, input(rank, 0), peers_of(rank, size));
    for (const Rank peer : peers_of(rank, size)) plan.on(rank).wait(peer);
    std::vector<Chunk> sources;
    for (const Rank peer : topology.ranks())
      sources.push_back(peer == rank ? input(rank, 0) : published_chunk(topology, peer, rank));
    plan.on(rank).reduce(std::move(sources), {output(rank, 0)});
  }
  return std::move(plan).build();
}

}  // namespace

AlgorithmEntry all_reduce_one_shot_entry() {
  return {
      .collective = Collective::kAllReduce,
      .name = "one_shot",
      .make = all_reduce_one_shot,
      .order = Order::kCanonical,
      .spans_hosts = true,
      .description = {
          .steps = "1",
          .bytes = "(n - 1) M",
          .selected =
              "up to 8 ranks, 128 B to 8 KB (2 ranks: to 192 KB); several hosts: 2 to 8 KB (up to 4 ranks: to 32 KB)",
          .source = "all-pairs; MSCCL++ 2025"}};
}

}  // namespace accord::plan
