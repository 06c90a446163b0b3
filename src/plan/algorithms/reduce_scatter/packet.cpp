// Packet reduce-scatter: each rank writes each part as packets to its owner, which adds what arrives in rank order.
// Steps: 1, without a signal after the data. Moved per rank: (n - 1)/n of the input. For small messages; packets are
// those of NCCL's LL protocol.

#include "plan/algorithms/catalog.hpp"

namespace accord::plan {

Result<Plan> reduce_scatter_packet(const topology::Topology& topology, const Request& request) {
  const int size = topology.size();
  PlanBuilder plan("packet", request, size, {.input_chunks = size, .output_chunks = 1, .packet_chunks = size});
  plan.set_order(Order::kCanonical);
  plan.set_pacing(Pacing::kByPlan);
  for (const Rank rank : plan.ranks()) {
    for (const Rank owner : peers_of(rank, size)) plan.on(rank).put_packets(input(rank, owner), packets(owner, rank));
    std::vector<Chunk> sources;
    for (const Rank peer : topology.ranks()) sources.push_back(peer == rank ? input(rank, rank) : packets(rank, peer));
    plan.on(rank).reduce(std::move(sources), {output(rank, 0)});
  }
  return std::move(plan).build();
}

}  // namespace accord::plan
