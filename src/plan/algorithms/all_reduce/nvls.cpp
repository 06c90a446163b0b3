// All-reduce by a switch: each rank publishes its input, reads one part of it as the sum over all ranks, and writes
// that sum to all at once. The sum of a part replaces its operands, which no other rank reads.

#include "plan/algorithms.hpp"
#include "plan/algorithms/exchange.hpp"

namespace accord::plan {
namespace {

Result<Plan> all_reduce_nvls(const topology::Topology& topology, const Request& request) {
  constexpr int kSumReady = 1;
  const int size = topology.size();
  PlanBuilder plan("nvls", request, size, {.input_chunks = size, .output_chunks = size, .multicast_chunks = size});
  plan.set_order(Order::kSwitch);
  plan.set_pacing(Pacing::kByPlan);
  for (const Rank rank : plan.ranks()) {
    publish_to_switch(plan, rank, size);
    plan.on(rank).reduce({multicast(kEveryRank, rank)}, {multicast(kEveryRank, rank), output(rank, rank)});
    for (const Rank peer : peers_of(rank, size)) plan.on(rank).signal(peer, kSumReady);
    for (const Rank peer : peers_of(rank, size))
      plan.on(rank).wait(peer, kSumReady).copy(multicast(rank, peer), {output(rank, peer)});
  }
  return std::move(plan).build();
}

}  // namespace

AlgorithmEntry all_reduce_nvls_entry() {
  return {.collective = Collective::kAllReduce,
          .name = "nvls",
          .make = all_reduce_nvls,
          .order = Order::kSwitch,
          .adds_in_parts = true,
          .multicasts = true,
          .description = {.steps = "2",
                          .bytes = "M/n read as a sum, M/n written",
                          .selected = AlgorithmDescription::kByName,
                          .source = "NVLink SHARP; NCCL 2.17"}};
}

}  // namespace accord::plan
