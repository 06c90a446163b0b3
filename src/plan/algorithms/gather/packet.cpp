// Packet gather: each rank writes its buffer as packets to the root. For small messages: no signal follows the data.

#include "plan/algorithms.hpp"
#include "plan/algorithms/exchange.hpp"

namespace accord::plan {
namespace {

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

}  // namespace

AlgorithmEntry gather_packet_entry() {
  return {.collective = Collective::kGather,
          .name = "packet",
          .make = gather_packet,
          .spans_hosts = true,
          .description = {.steps = "1",
                          .bytes = "M/n",
                          .selected = "below 256 B; several hosts: below 2 KB",
                          .source = "flat tree over the LL protocol of NCCL"}};
}

}  // namespace accord::plan
