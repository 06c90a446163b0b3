// Ring reduce-scatter: the sum of each part travels once around the ring, from the rank after its owner to the owner,
// and each rank adds its own.
// Steps: n - 1. Moved per rank: (n - 1)/n of the input, all from one neighbour; sums travel in partials. The order is
// the ring's, not canonical. Thakur, Rabenseifner, Gropp 2005, section 4.4; Patarasuk, Yuan 2009.

#include <algorithm>

#include "plan/algorithms/catalog.hpp"
#include "plan/algorithms/ring.hpp"

namespace accord::plan {

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

}  // namespace accord::plan
