// Packet scatter: the root writes each rank's part as packets to that rank. For small messages: no signal follows the
// data.

#include "plan/algorithms.hpp"
#include "plan/algorithms/exchange.hpp"

namespace accord::plan {
namespace {

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

}  // namespace

AlgorithmEntry scatter_packet_entry() {
  return {.collective = Collective::kScatter,
          .name = "packet",
          .make = scatter_packet,
          .spans_hosts = true,
          .description = {.steps = "1",
                          .bytes = "(n - 1)/n M by the root",
                          .selected = "below 256 B; several hosts: below 2 KB",
                          .source = "flat tree over the LL protocol of NCCL"}};
}

}  // namespace accord::plan
