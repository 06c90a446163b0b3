// Recursive halving reduce-scatter: in each step a rank exchanges half of its remaining sums with one other rank, the
// nearest first, so that the sums grow along the canonical tree (the textbook version begins with the farthest). If n
// is not a power of two, the tree's halves are unequal; there is no extra step before or after. Sums travel in
// partials.

#include "plan/algorithms.hpp"
#include "plan/algorithms/canonical_tree.hpp"

namespace accord::plan {
namespace {

Result<Plan> reduce_scatter_recursive_halving(const topology::Topology& topology, const Request& request) {
  const int size = topology.size();
  PlanBuilder plan(
      "recursive_halving", request, size,
      {.input_chunks = size, .output_chunks = 1, .scratch_chunks = size, .partial_chunks = size > 2 ? size : 0});
  plan.set_order(Order::kCanonical);
  plan.set_pacing(Pacing::kByPlan);
  for (const Rank rank : plan.ranks()) reduce_by_halving(plan, rank, size, 0, {output(rank, 0)});
  return std::move(plan).build();
}

}  // namespace

AlgorithmEntry reduce_scatter_recursive_halving_entry() {
  return {.collective = Collective::kReduceScatter,
          .name = "recursive_halving",
          .make = reduce_scatter_recursive_halving,
          .order = Order::kCanonical,
          .description = {.steps = "ceil(log2 n)",
                          .bytes = "(n - 1)/n M, below 2 M if n is not a power of two",
                          .selected = AlgorithmDescription::kByName,
                          .source = "Thakur, Rabenseifner, Gropp 2005, section 4.4"}};
}

}  // namespace accord::plan
