// Ring reduce-scatter: the sum of each part travels once around the ring, from the rank after its owner to the owner,
// and each rank adds its own. Sums travel in partials. Also in Thakur, Rabenseifner, Gropp 2005, section 4.4.

#include "plan/algorithms/ring.hpp"

#include <algorithm>

#include "plan/algorithms.hpp"

namespace accord::plan {
namespace {

Result<Plan> reduce_scatter_ring(const topology::Topology& topology, const Request& request) {
  const int size = topology.size();
  PlanBuilder plan(
      "ring", request, size,
      {.input_chunks = size, .output_chunks = 1, .scratch_chunks = size, .partial_chunks = std::max(0, size - 2)});
  plan.set_order(Order::kFixed);
  plan.set_pacing(Pacing::kByPlan);
  for (const Rank rank : plan.ranks()) reduce_along_ring(plan, rank, size, {output(rank, 0)});
  return std::move(plan).build();
}

}  // namespace

AlgorithmEntry reduce_scatter_ring_entry() {
  return {.collective = Collective::kReduceScatter,
          .name = "ring",
          .make = reduce_scatter_ring,
          .order = Order::kFixed,
          .description = {.steps = "n - 1",
                          .bytes = "(n - 1)/n M, from one neighbour",
                          .selected = AlgorithmDescription::kByName,
                          .source = "Patarasuk, Yuan 2009"}};
}

}  // namespace accord::plan
