// Bruck all-gather: in step k each rank takes from the rank 2^k after it the parts that this rank has, those of the
// 2^k ranks from there on; after ceil(log2 n) steps it has all. No final rotation is needed, since each part is
// stored in its place at once.

#include <algorithm>

#include "plan/algorithms.hpp"

namespace accord::plan {
namespace {

// Number of parts moved in the step of `distance`.
int parts_of_step(int distance, int size) { return std::min(distance, size - distance); }

// Whether the part of the `offset`-th rank after a rank is taken from that rank in a step from `distance` on.
bool is_passed_on(int offset, int distance, int size) {
  for (; distance < size; distance *= 2) {
    if (offset < parts_of_step(distance, size)) return true;
  }
  return false;
}

Result<Plan> all_gather_bruck(const topology::Topology& topology, const Request& request) {
  const int size = topology.size();
  PlanBuilder plan("bruck", request, size, {.input_chunks = 1, .output_chunks = size, .scratch_chunks = size});
  plan.set_pacing(Pacing::kByPlan);
  for (const Rank rank : plan.ranks()) {
    std::vector<Chunk> destinations = {output(rank, rank)};
    if (size > 1) destinations.push_back(scratch(rank, rank));
    plan.on(rank).copy(input(rank, 0), std::move(destinations));
    for (int distance = 1; distance < size; distance *= 2) {
      const Rank from = (rank + distance) % size;
      plan.on(rank).signal((rank + size - distance) % size).wait(from);
      for (int offset = distance; offset < distance + parts_of_step(distance, size); ++offset) {
        const Rank owner = (rank + offset) % size;
        destinations = {output(rank, owner)};
        if (is_passed_on(offset, 2 * distance, size)) destinations.push_back(scratch(rank, owner));
        plan.on(rank).copy(scratch(from, owner), destinations);
      }
    }
  }
  return std::move(plan).build();
}

}  // namespace

AlgorithmEntry all_gather_bruck_entry() {
  return {.collective = Collective::kAllGather,
          .name = "bruck",
          .make = all_gather_bruck,
          .description = {.steps = "ceil(log2 n)",
                          .bytes = "(n - 1)/n M",
                          .selected = AlgorithmDescription::kByName,
                          .source = "Bruck, Ho, Kipnis, Upfal, Weathersby 1997"}};
}

}  // namespace accord::plan
