// Reduce-scatter by a switch: each rank publishes its input, and reads its own part as the sum over all ranks.
// Steps: 1. Moved per rank: 1/n of the input, as a sum. NVLink SHARP; NCCL 2.17.

#include "plan/algorithms/catalog.hpp"

namespace accord::plan {

Result<Plan> reduce_scatter_nvls(const topology::Topology& topology, const Request& request) {
  const int size = topology.size();
  PlanBuilder plan("nvls", request, size, {.input_chunks = size, .output_chunks = 1, .multicast_chunks = size});
  plan.set_order(Order::kSwitch);
  plan.set_pacing(Pacing::kByPlan);
  for (const Rank rank : plan.ranks()) {
    publish_to_switch(plan, rank, size);
    plan.on(rank).reduce({multicast(kEveryRank, rank)}, {output(rank, 0)});
  }
  return std::move(plan).build();
}

}  // namespace accord::plan
