// Packet gather: each rank writes its buffer as packets to the root.
// Steps: 1, without a signal after the data. Moved: each rank's part once. For small messages; packets are those of
// NCCL's LL protocol.

#include "plan/algorithms/catalog.hpp"

namespace accord::plan {

Result<Plan> gather_packet(const topology::Topology& topology, const Request& request) {
  const Rank root = request.root;
  const int size = topology.size();
  PlanBuilder plan("packet", request, size, {.input_chunks = 1, .output_chunks = size, .packet_chunks = size});
  for (const Rank rank : plan.ranks()) {
    if (rank != root) {
      plan.on(rank).put_packets(input(rank, 0), packets(root, rank));
      continue;
    }
    plan.on(root).copy(input(root, 0), {output(root, root)});
    for (const Rank peer : peers_of(root, size)) plan.on(root).copy(packets(root, peer), {output(root, peer)});
  }
  return std::move(plan).build();
}

}  // namespace accord::plan
