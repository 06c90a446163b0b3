// Packet all-to-all: each rank writes each part as packets to its owner. This works in place, since a rank has sent
// all its parts before it receives the first. For small messages: no signal follows the data.

#include "plan/algorithms.hpp"
#include "plan/algorithms/exchange.hpp"

namespace accord::plan {
namespace {

Result<Plan> all_to_all_packet(const topology::Topology& topology, const Request& request) {
  const int size = topology.size();
  PlanBuilder plan("packet", request, size, {.input_chunks = size, .output_chunks = size, .packet_chunks = size});
  plan.set_pacing(Pacing::kByPlan);
  for (const Rank rank : plan.ranks()) {
    for (const Rank peer : peers_of(rank, size)) plan.on(rank).put_packets(input(rank, peer), packets(peer, rank));
    plan.on(rank).copy(input(rank, rank), {output(rank, rank)});
    for (const Rank peer : peers_of(rank, size)) plan.on(rank).copy(packets(rank, peer), {output(rank, peer)});
  }
  return std::move(plan).build();
}

}  // namespace

AlgorithmEntry all_to_all_packet_entry() {
  return {.collective = Collective::kAllToAll,
          .name = "packet",
          .make = all_to_all_packet,
          .spans_hosts = true,
          .description = {.steps = "1",
                          .bytes = "(n - 1)/n M",
                          .selected = "below 256 B; several hosts: below 2 KB",
                          .source = "direct exchange over the LL protocol of NCCL"}};
}

}  // namespace accord::plan
