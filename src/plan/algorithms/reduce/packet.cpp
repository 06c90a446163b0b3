// Packet reduce: each rank writes its buffer as packets to the root, which adds what arrives in rank order.
// Steps: 1, without a signal after the data. Moved: n - 1 times the message, all to the root. For small messages;
// packets are those of NCCL's LL protocol.

#include "plan/algorithms/catalog.hpp"

namespace accord::plan {

Result<Plan> reduce_packet(const topology::Topology& topology, const Request& request) {
  const Rank root = request.root;
  const int size = topology.size();
  PlanBuilder plan("packet", request, size, {.input_chunks = 1, .output_chunks = 1, .packet_chunks = size});
  plan.set_order(Order::kCanonical);
  for (const Rank rank : plan.ranks()) {
    if (rank != root) {
      plan.on(rank).put_packets(input(rank, 0), packets(root, rank));
      continue;
    }
    std::vector<Chunk> sources;
    for (const Rank peer : topology.ranks()) sources.push_back(peer == root ? input(root, 0) : packets(root, peer));
    plan.on(root).reduce(std::move(sources), {output(root, 0)});
  }
  return std::move(plan).build();
}

}  // namespace accord::plan
