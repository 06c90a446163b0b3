// Bruck all-to-all: the part for the rank `distance` after its sender travels there by the powers of two in the
// distance, the lowest first. In step k each rank takes from the rank 2^k before it the parts whose distance has that
// bit, about half of all. Each part has a separate scratch chunk before each hop, so no rank has to wait for a chunk
// to become free. For small messages and many ranks.

#include <bit>

#include "plan/algorithms.hpp"

namespace accord::plan {
namespace {

int hops_of(int distance) { return std::popcount(static_cast<unsigned>(distance)); }

// The chunk that holds a part for `distance` after `hops` hops.
int resting_place(int distance, int hops) {
  int place = hops;
  for (int nearer = 1; nearer < distance; ++nearer) place += hops_of(nearer);
  return place;
}

Result<Plan> all_to_all_bruck(const topology::Topology& topology, const Request& request) {
  const int size = topology.size();
  PlanBuilder plan("bruck", request, size,
                   {.input_chunks = size, .output_chunks = size, .scratch_chunks = resting_place(size, 0)});
  plan.set_pacing(Pacing::kByPlan);
  for (const Rank rank : plan.ranks()) {
    for (int distance = 1; distance < size; ++distance) {
      plan.on(rank).copy(input(rank, (rank + distance) % size), {scratch(rank, resting_place(distance, 0))});
    }
    plan.on(rank).copy(input(rank, rank), {output(rank, rank)});
    for (int hop = 1; hop < size; hop *= 2) {
      const Rank from = (rank + size - hop) % size;
      plan.on(rank).signal((rank + hop) % size).wait(from);
      for (int distance = hop; distance < size; ++distance) {
        if ((distance & hop) == 0) continue;
        const int hops = hops_of(distance & (hop - 1));  // completed so far
        const bool arrives = hops + 1 == hops_of(distance);
        plan.on(rank).copy(scratch(from, resting_place(distance, hops)),
                           {arrives ? output(rank, (rank + size - distance) % size)
                                    : scratch(rank, resting_place(distance, hops + 1))});
      }
    }
  }
  return std::move(plan).build();
}

}  // namespace

AlgorithmEntry all_to_all_bruck_entry() {
  return {.collective = Collective::kAllToAll,
          .name = "bruck",
          .make = all_to_all_bruck,
          .description = {.steps = "ceil(log2 n)",
                          .bytes = "(log2 n)/2 M",
                          .selected = AlgorithmDescription::kByName,
                          .source = "Bruck, Ho, Kipnis, Upfal, Weathersby 1997"}};
}

}  // namespace accord::plan
