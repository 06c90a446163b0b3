// Reduce-scatter by a switch: each rank publishes its input, and reads its own part as the sum over all ranks.

#include "plan/algorithms.hpp"
#include "plan/algorithms/exchange.hpp"

namespace accord::plan {
namespace {

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

}  // namespace

AlgorithmEntry reduce_scatter_nvls_entry() {
  return {.collective = Collective::kReduceScatter,
          .name = "nvls",
          .make = reduce_scatter_nvls,
          .order = Order::kSwitch,
          .adds_in_parts = true,
          .multicasts = true,
          .description = {.steps = "1",
                          .bytes = "M/n read as a sum",
                          .selected = AlgorithmDescription::kByName,
                          .source = "NVLink SHARP; NCCL 2.17"}};
}

}  // namespace accord::plan
