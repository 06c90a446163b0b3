// Packet reduce: each rank writes its buffer as packets to the root, which adds what arrives in rank order. For small
// messages: no signal follows the data.

#include "plan/algorithms.hpp"

namespace accord::plan {
namespace {

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

}  // namespace

AlgorithmEntry reduce_packet_entry() {
  return {.collective = Collective::kReduce,
          .name = "packet",
          .make = reduce_packet,
          .order = Order::kCanonical,
          .spans_hosts = true,
          .description = {.steps = "1",
                          .bytes = "M",
                          .selected = "below 256 B; several hosts: below 2 KB",
                          .source = "flat tree over the LL protocol of NCCL"}};
}

}  // namespace accord::plan
