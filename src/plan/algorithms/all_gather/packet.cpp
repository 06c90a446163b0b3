// Packet all-gather: each rank writes its part as packets to every other rank.
// Steps: 1, without a signal after the data. Moved per rank: n - 1 times its part. For small messages; packets are
// those of NCCL's LL protocol.

#include "plan/algorithms/catalog.hpp"

namespace accord::plan {

Result<Plan> all_gather_packet(const topology::Topology& topology, const Request& request) {
  const int size = topology.size();
  PlanBuilder plan("packet", request, size, {.input_chunks = 1, .output_chunks = size, .packet_chunks = size});
  plan.set_pacing(Pacing::kByPlan);
  for (const Rank rank : plan.ranks()) {
    for (const Rank peer : peers_of(rank, size)) plan.on(rank).put_packets(input(rank, 0), packets(peer, rank));
    plan.on(rank).copy(input(rank, 0), {output(rank, rank)});
    for (const Rank peer : peers_of(rank, size)) plan.on(rank).copy(packets(rank, peer), {output(rank, peer)});
  }
  return std::move(plan).build();
}

}  // namespace accord::plan
