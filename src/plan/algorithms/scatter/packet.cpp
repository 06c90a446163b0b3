// Packet scatter: the root writes each rank's part as packets to that rank.
// Steps: 1, without a signal after the data. Moved: each rank's part once, by the root. For small messages; packets
// are those of NCCL's LL protocol.

#include "plan/algorithms/catalog.hpp"

namespace accord::plan {

Result<Plan> scatter_packet(const topology::Topology& topology, const Request& request) {
  const Rank root = request.root;
  const int size = topology.size();
  PlanBuilder plan("packet", request, size, {.input_chunks = size, .output_chunks = 1, .packet_chunks = size});
  for (const Rank rank : plan.ranks()) {
    if (rank != root) {
      plan.on(rank).copy(packets(rank, root), {output(rank, 0)});
      continue;
    }
    for (const Rank peer : peers_of(root, size)) plan.on(root).put_packets(input(root, peer), packets(peer, root));
    plan.on(root).copy(input(root, root), {output(root, 0)});
  }
  return std::move(plan).build();
}

}  // namespace accord::plan
