// Packet all-to-all: each rank writes each part as packets to its owner. This works in place, since a rank has sent
// all its parts before it receives the first.
// Steps: 1, without a signal after the data. Moved per rank: (n - 1)/n of its input. For small messages; packets are
// those of NCCL's LL protocol.

#include "plan/algorithms/catalog.hpp"

namespace accord::plan {

Result<Plan> all_to_all_packet(const topology::Topology& topology, const Request& request) {
  const int size = topology.size();
  PlanBuilder plan("packet", request, size, {.input_chunks = size, .output_chunks = size, .packet_chunks = size});
  plan.set_pacing(Pacing::kByPlan);
  for (const Rank rank : plan.ranks()) {
    for (const Rank peer : peers_of(rank, size)) plan.on(rank).put_packets(input(rank, peer), packets(peer, rank));
    plan.on(rank).copy(input(rank, rank), {output(rank, rank)});
    for (const Rank peer : peers_of(rank, size)) plan.on(rank).copy(packets(rank, peer), {output(rank, peer)});
  }
  return std::move(plan).build();
}

}  // namespace accord::plan
