// All-gather by a switch: each rank writes its part to all at once, and copies the parts of the others from its own
// memory.

#include "plan/algorithms.hpp"
#include "plan/algorithms/exchange.hpp"

namespace accord::plan {
namespace {

Result<Plan> all_gather_nvls(const topology::Topology& topology, const Request& request) {
  const int size = topology.size();
  PlanBuilder plan("nvls", request, size, {.input_chunks = 1, .output_chunks = size, .multicast_chunks = size});
  plan.set_pacing(Pacing::kByPlan);
  for (const Rank rank : plan.ranks()) {
    if (size > 1) plan.on(rank).copy(input(rank, 0), {multicast(kEveryRank, rank)});
    for (const Rank peer : peers_of(rank, size)) plan.on(rank).signal(peer);
    plan.on(rank).copy(input(rank, 0), {output(rank, rank)});
    for (const Rank peer : peers_of(rank, size))
      plan.on(rank).wait(peer).copy(multicast(rank, peer), {output(rank, peer)});
  }
  return std::move(plan).build();
}

}  // namespace

AlgorithmEntry all_gather_nvls_entry() {
  return {.collective = Collective::kAllGather,
          .name = "nvls",
          .make = all_gather_nvls,
          .multicasts = true,
          .description = {.steps = "1",
                          .bytes = "M/n written",
                          .selected = AlgorithmDescription::kByName,
                          .source = "NVLink SHARP; NCCL 2.17"}};
}

}  // namespace accord::plan
