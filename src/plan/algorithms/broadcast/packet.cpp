// Packet broadcast: the root writes its buffer as packets to every other rank.
// Steps: 1, without a signal after the data. Moved: n - 1 times the message, all by the root. For small messages;
// packets are those of NCCL's LL protocol.

#include "plan/algorithms/catalog.hpp"

namespace accord::plan {

Result<Plan> broadcast_packet(const topology::Topology& topology, const Request& request) {
  const Rank root = request.root;
  const int size = topology.size();
  PlanBuilder plan("packet", request, size, {.input_chunks = 1, .output_chunks = 1, .packet_chunks = size});
  for (const Rank rank : plan.ranks()) {
    if (rank != root) {
      plan.on(rank).copy(packets(rank, root), {output(rank, 0)});
    } else {
      for (const Rank peer : peers_of(root, size)) plan.on(root).put_packets(input(root, 0), packets(peer, root));
    }
  }
  return std::move(plan).build();
}

}  // namespace accord::plan
