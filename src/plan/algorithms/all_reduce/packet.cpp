// Packet all-reduce: each rank writes its whole buffer as packets to every other rank, and adds what arrives in rank
// order, reading its own part in place.
// Steps: 1, without a signal after the data. Moved per rank: n - 1 times the message. For small messages; all-pairs
// exchange of MSCCL++ over packets of NCCL's LL protocol.

#include "plan/algorithms/catalog.hpp"

namespace accord::plan {

Result<Plan> all_reduce_packet(const topology::Topology& topology, const Request& request) {
  const int size = topology.size();
  PlanBuilder plan("packet", request, size, {.input_chunks = 1, .output_chunks = 1, .packet_chunks = size});
  plan.set_order(Order::kCanonical);
  plan.set_pacing(Pacing::kByPlan);
  for (const Rank rank : plan.ranks()) {
    for (const Rank peer : peers_of(rank, size)) plan.on(rank).put_packets(input(rank, 0), packets(peer, rank));
    std::vector<Chunk> sources;
    for (const Rank peer : topology.ranks()) sources.push_back(peer == rank ? input(rank, 0) : packets(rank, peer));
    plan.on(rank).reduce(std::move(sources), {output(rank, 0)});
  }
  return std::move(plan).build();
}

}  // namespace accord::plan
