// Packet all-gather: each rank writes its part as packets to every other rank. For small messages: no signal follows
// the data.

#include "plan/algorithms.hpp"
#include "plan/algorithms/exchange.hpp"

namespace accord::plan {
namespace {

Result<Plan> all_gather_packet(const topology::Topology& topology, const Request& request) {
  const int size = topology.size();
  PlanBuilder plan("packet", request, size, {.input_chunks = 1, .output_chunks = size, .packet_chunks = size});
  plan.set_pacing(Pacing::kByPlan);
  for (const Rank rank : plan.ranks()) {
    for (const Rank peer : peers_of(rank, size)) plan.on(rank).put_packets(input(rank, 0), packets(peer, rank));
    plan.on(rank).copy(input(rank, 0), {output(rank, rank)});
    for (const Rank peer : peers_of(rank, size)) plan.on(rank).copy(packets(rank, peer), {output(rank, peer)});
  }
  return std::move(plan).build();
}

}  // namespace

AlgorithmEntry all_gather_packet_entry() {
  return {.collective = Collective::kAllGather,
          .name = "packet",
          .make = all_gather_packet,
          .spans_hosts = true,
          .description = {.steps = "1",
                          .bytes = "(n - 1)/n M",
                          .selected = "below 256 B; several hosts: below 2 KB",
                          .source = "direct exchange over the LL protocol of NCCL"}};
}

}  // namespace accord::plan
