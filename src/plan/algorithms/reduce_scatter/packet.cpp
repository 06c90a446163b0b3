// Packet reduce-scatter: each rank writes each part as packets to its owner, which adds what arrives in rank order.
// For small messages: no signal follows the data.

#include "plan/algorithms.hpp"
#include "plan/algorithms/exchange.hpp"

namespace accord::plan {
namespace {

Result<Plan> reduce_scatter_packet(const topology::Topology& topology, const Request& request) {
  const int size = topology.size();
  PlanBuilder plan("packet", request, size, {.input_chunks = size, .output_chunks = 1, .packet_chunks = size});
  plan.set_order(Order::kCanonical);
  plan.set_pacing(Pacing::kByPlan);
  for (const Rank rank : plan.ranks()) {
    for (const Rank owner : peers_of(rank, size)) plan.on(rank).put_packets(input(rank, owner), packets(owner, rank));
    std::vector<Chunk> sources;
    for (const Rank peer : topology.ranks()) sources.push_back(peer == rank ? input(rank, rank) : packets(rank, peer));
    plan.on(rank).reduce(std::move(sources), {output(rank, 0)});
  }
  return std::move(plan).build();
}

}  // namespace

AlgorithmEntry reduce_scatter_packet_entry() {
  return {.collective = Collective::kReduceScatter,
          .name = "packet",
          .make = reduce_scatter_packet,
          .order = Order::kCanonical,
          .spans_hosts = true,
          .description = {.steps = "1",
                          .bytes = "(n - 1)/n M",
                          .selected = "below 256 B; several hosts: below 2 KB",
                          .source = "direct exchange over the LL protocol of NCCL"}};
}

}  // namespace accord::plan
