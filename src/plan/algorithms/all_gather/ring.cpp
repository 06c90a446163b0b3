// Ring all-gather: in each step every rank takes from its predecessor the part that arrived there in the previous
// step, and publishes it for its successor.

#include "plan/algorithms/ring.hpp"

#include "plan/algorithms.hpp"

namespace accord::plan {
namespace {

Result<Plan> all_gather_ring(const topology::Topology& topology, const Request& request) {
  const int size = topology.size();
  PlanBuilder plan("ring", request, size, {.input_chunks = 1, .output_chunks = size, .scratch_chunks = size});
  plan.set_pacing(Pacing::kByPlan);
  for (const Rank rank : plan.ranks()) {
    std::vector<Chunk> destinations = {output(rank, rank)};
    if (size > 1) destinations.push_back(scratch(rank, rank));
    plan.on(rank).copy(input(rank, 0), std::move(destinations));
    gather_along_ring(plan, rank, size, 0);
  }
  return std::move(plan).build();
}

}  // namespace

AlgorithmEntry all_gather_ring_entry() {
  return {.collective = Collective::kAllGather,
          .name = "ring",
          .make = all_gather_ring,
          .description = {.steps = "n - 1",
                          .bytes = "(n - 1)/n M, from one neighbour",
                          .selected = AlgorithmDescription::kByName,
                          .source = "Thakur, Rabenseifner, Gropp 2005, section 4.1"}};
}

}  // namespace accord::plan
