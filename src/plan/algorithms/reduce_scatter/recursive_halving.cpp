// Recursive halving reduce-scatter: in each step a rank exchanges half of its remaining sums with one other rank, the
// nearest first, so that the sums grow along the canonical tree (the textbook version begins with the farthest). If n
// is not a power of two, the tree's halves are unequal; there is no extra step before or after.
// Steps: ceil(log2 n). Moved per rank: (n - 1)/n of the input if n is a power of two, otherwise less than twice that;
// sums travel in partials. Thakur, Rabenseifner, Gropp 2005, section 4.4.

#include "plan/algorithms/canonical_tree.hpp"
#include "plan/algorithms/catalog.hpp"

namespace accord::plan {

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

}  // namespace accord::plan
