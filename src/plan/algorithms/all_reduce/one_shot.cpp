// One-shot all-reduce: each rank publishes its whole buffer to all others and adds all buffers, in rank order.
// Steps: 1. Moved per rank: n - 1 times the message. All-pairs algorithm of MSCCL++.

#include "plan/algorithms/catalog.hpp"

namespace accord::plan {

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

}  // namespace accord::plan
