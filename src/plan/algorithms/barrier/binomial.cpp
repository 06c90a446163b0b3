// Binomial barrier: a rank notifies its parent in the tree when its subtree has arrived, and its children when all
// have.
// Steps: 2 floor(log2 n). Signals: 2 (n - 1) over all ranks, where dissemination sends n ceil(log2 n). Meant for more
// ranks than cores, where each signal may be a context switch. Tree barrier, Mellor-Crummey and Scott 1991.

#include "plan/algorithms/binomial_tree.hpp"
#include "plan/algorithms/catalog.hpp"

namespace accord::plan {

Result<Plan> barrier_binomial(const topology::Topology& topology, const Request& request) {
  const BinomialTree tree(topology.size(), 0);
  PlanBuilder plan("binomial", request, topology.size(), {});
  plan.set_pacing(Pacing::kByPlan);
  for (const Rank rank : plan.ranks()) {
    for (const int child : tree.children(rank)) plan.on(rank).wait(child);
    if (rank > 0) plan.on(rank).signal(BinomialTree::parent(rank)).wait(BinomialTree::parent(rank));
    for (const int child : tree.children_largest_first(rank)) plan.on(rank).signal(child);
  }
  return std::move(plan).build();
}

}  // namespace accord::plan
