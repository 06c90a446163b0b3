// Direct reduce-scatter: each rank hands over the parts that belong to others, then adds its own part over all ranks
// in rank order, which is the canonical order.
// Steps: 1. Moved per rank: (n - 1)/n of the input. Direct exchange; Thakur, Rabenseifner, Gropp 2005.

#include "plan/algorithms/catalog.hpp"

namespace accord::plan {

Result<Plan> reduce_scatter_direct(const topology::Topology& topology, const Request& request) {
  const int size = topology.size();
  PlanBuilder plan("direct", request, size, {.input_chunks = size, .output_chunks = 1, .scratch_chunks = size});
  plan.set_order(Order::kCanonical);
  plan.set_pacing(Pacing::kByPlan);
  for (const Rank rank : plan.ranks()) {
    std::vector<Chunk> sources = exchange_parts(plan, topology, rank, 0);
    plan.on(rank).reduce(std::move(sources), {output(rank, 0)});
  }
  return std::move(plan).build();
}

}  // namespace accord::plan
