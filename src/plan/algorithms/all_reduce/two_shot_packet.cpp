// Two-shot packet all-reduce: each rank puts each part of its buffer as packets to the owner of that part, adds its own
// part over all ranks, in rank order, and puts the sum as packets to every other rank. No signal follows the data.

#include "plan/algorithms.hpp"
#include "plan/algorithms/exchange.hpp"

namespace accord::plan {
namespace {

Result<Plan> all_reduce_two_shot_packet(const topology::Topology& topology, const Request& request) {
  const int size = topology.size();
  PlanBuilder plan("two_shot_packet", request, size,
                   {.input_chunks = size, .output_chunks = size, .packet_chunks = 2 * size});
  plan.set_order(Order::kCanonical);
  plan.set_pacing(Pacing::kByPlan);
  for (const Rank rank : plan.ranks()) {
    const std::vector<Rank> peers = peers_of(rank, size);
    for (const Rank owner : peers) plan.on(rank).put_packets(input(rank, owner), packets(owner, rank));
    std::vector<Chunk> parts;
    for (const Rank peer : topology.ranks()) parts.push_back(peer == rank ? input(rank, rank) : packets(rank, peer));
    plan.on(rank).reduce(std::move(parts), {output(rank, rank)});
    for (const Rank peer : peers) plan.on(rank).put_packets(output(rank, rank), packets(peer, size + rank));
    for (const Rank peer : peers) plan.on(rank).copy(packets(rank, size + peer), {output(rank, peer)});
  }
  return std::move(plan).build();
}

}  // namespace

AlgorithmEntry all_reduce_two_shot_packet_entry() {
  return {.collective = Collective::kAllReduce,
          .name = "two_shot_packet",
          .make = all_reduce_two_shot_packet,
          .order = Order::kCanonical,
          .spans_hosts = true,
          .description = {.steps = "2",
                          .bytes = "2 (n - 1)/n M",
                          .selected = "GPUs: 3 to 8 ranks, 64 KB to 1 MB",
                          .source = "two-shot over the LL protocol of NCCL; MSCCL++ 2025"}};
}

}  // namespace accord::plan
