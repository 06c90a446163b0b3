// Ring all-reduce: a ring reduce-scatter, then a ring all-gather of the sums. The scratch in which a rank published a
// chunk later holds the chunk's sum, which arrives there last. Sums travel in partials. No algorithm moves less.

#include "plan/algorithms/ring.hpp"

#include <algorithm>

#include "plan/algorithms.hpp"

namespace accord::plan {
namespace {

Result<Plan> all_reduce_ring(const topology::Topology& topology, const Request& request) {
  const int size = topology.size();
  PlanBuilder plan(
      "ring", request, size,
      {.input_chunks = size, .output_chunks = size, .scratch_chunks = size, .partial_chunks = std::max(0, size - 2)});
  plan.set_order(Order::kFixed);
  plan.set_pacing(Pacing::kByPlan);
  for (const Rank rank : plan.ranks()) {
    std::vector<Chunk> sums = {output(rank, rank)};
    if (size > 1) sums.push_back(scratch(rank, rank));
    reduce_along_ring(plan, rank, size, std::move(sums));
    gather_along_ring(plan, rank, size, size - 1);
  }
  return std::move(plan).build();
}

}  // namespace

AlgorithmEntry all_reduce_ring_entry() {
  return {.collective = Collective::kAllReduce,
          .name = "ring",
          .make = all_reduce_ring,
          .order = Order::kFixed,
          .description = {.steps = "2 (n - 1)",
                          .bytes = "2 (n - 1)/n M, from one neighbour",
                          .selected = AlgorithmDescription::kByName,
                          .source = "Patarasuk, Yuan 2009"}};
}

}  // namespace accord::plan
