// Packet all-reduce: each rank writes its whole buffer as packets to every other rank, and adds what arrives in rank
// order, reading its own part in place. For small messages: no signal follows the data.

#include "plan/algorithms.hpp"
#include "plan/algorithms/exchange.hpp"

namespace accord::plan {
namespace {

Result<Plan> all_reduce_packet(const topology::Topology& topology, const Request& request) {
  const int size = topology.size();
  PlanBuilder plan("packet", request, size, {.input_chunks = 1, .output_chunks = 1, .packet_chunks = size});
  plan.set_order(Order::kCanonical);
  plan.set_pacing(Pacing::kByPlan);
  for (const Rank rank : plan.ranks()) {
    for (const Rank peer : peers_of(rank, size)) plan.on(rank).put_packets(input(rank, 0), packets(peer, rank));
    std::vector<Chunk> sources;
    for (const Rank peer : topology.ranks()) sources.push_back(peer == rank ? input(rank, 0) : packets(rank, peer));
    plan.on(rank).reduce(std::move(sources), {output(rank, 0)});
  }
  return std::move(plan).build();
}

}  // namespace

AlgorithmEntry all_reduce_packet_entry() {
  return {.collective = Collective::kAllReduce,
          .name = "packet",
          .make = all_reduce_packet,
          .order = Order::kCanonical,
          .spans_hosts = true,
          .description = {.steps = "1",
                          .bytes = "(n - 1) M",
                          .selected = "below 128 B; from 9 ranks: below 1 KB; several hosts: below 2 KB",
                          .source = "all-pairs over the LL protocol of NCCL; MSCCL++ 2025"}};
}

}  // namespace accord::plan
