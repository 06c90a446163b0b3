// Packet broadcast: the root writes its buffer as packets to every other rank. For small messages: no signal follows
// the data.

#include "plan/algorithms.hpp"
#include "plan/algorithms/exchange.hpp"

namespace accord::plan {
namespace {

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

}  // namespace

AlgorithmEntry broadcast_packet_entry() {
  return {.collective = Collective::kBroadcast,
          .name = "packet",
          .make = broadcast_packet,
          .spans_hosts = true,
          .description = {.steps = "1",
                          .bytes = "(n - 1) M by the root",
                          .selected = "below 256 B; several hosts: below 2 KB, up to 16 ranks",
                          .source = "flat tree over the LL protocol of NCCL"}};
}

}  // namespace accord::plan
