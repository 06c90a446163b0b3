// Recursive doubling all-gather: all ranks of a block have its parts once each has taken those of the other half from
// its partner there; blocks double. If n is not a power of two, the halves are as unequal as in the canonical tree,
// and a rank of the smaller half serves several of the larger; there are no more steps than for the next power of
// two.

#include "plan/algorithms.hpp"
#include "plan/algorithms/canonical_tree.hpp"

namespace accord::plan {
namespace {

Result<Plan> all_gather_recursive_doubling(const topology::Topology& topology, const Request& request) {
  const int size = topology.size();
  PlanBuilder plan("recursive_doubling", request, size,
                   {.input_chunks = 1, .output_chunks = size, .scratch_chunks = size});
  plan.set_pacing(Pacing::kByPlan);
  for (const Rank rank : plan.ranks()) {
    std::vector<Chunk> destinations = {output(rank, rank)};
    if (size > 1) destinations.push_back(scratch(rank, rank));
    plan.on(rank).copy(input(rank, 0), std::move(destinations));
    gather_by_doubling(plan, rank, size, 0);
  }
  return std::move(plan).build();
}

}  // namespace

AlgorithmEntry all_gather_recursive_doubling_entry() {
  return {.collective = Collective::kAllGather,
          .name = "recursive_doubling",
          .make = all_gather_recursive_doubling,
          .description = {.steps = "ceil(log2 n)",
                          .bytes = "(n - 1)/n M",
                          .selected = AlgorithmDescription::kByName,
                          .source = "Thakur, Rabenseifner, Gropp 2005, section 4.1"}};
}

}  // namespace accord::plan
