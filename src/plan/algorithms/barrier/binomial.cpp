// Binomial barrier: a rank notifies its parent in the tree when its subtree has arrived, and its children when all
// have. Dissemination sends n ceil(log2 n) signals in total. Meant for more ranks than cores, where each signal may be
// a context switch.

#include "plan/algorithms.hpp"
#include "plan/algorithms/binomial_tree.hpp"

namespace accord::plan {
namespace {

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

}  // namespace

AlgorithmEntry barrier_binomial_entry() {
  return {.collective = Collective::kBarrier,
          .name = "binomial",
          .make = barrier_binomial,
          .spans_hosts = true,
          .description = {.steps = "2 floor(log2 n)",
                          .bytes = "at most ceil(log2 n); 2 (n - 1) in total",
                          .selected = AlgorithmDescription::kByName,
                          .source = "tree barrier; Mellor-Crummey, Scott 1991"}};
}

}  // namespace accord::plan
