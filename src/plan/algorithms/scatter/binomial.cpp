// Binomial scatter: the root publishes all parts; each rank takes those of its subtree from its parent and publishes
// all but its own, the largest subtree's first. A part is moved once for each edge on its way.

#include "plan/algorithms.hpp"
#include "plan/algorithms/binomial_tree.hpp"

namespace accord::plan {
namespace {

Result<Plan> scatter_binomial(const topology::Topology& topology, const Request& request) {
  const Rank root = request.root;
  const int size = topology.size();
  const BinomialTree tree(size, root);
  PlanBuilder plan("binomial", request, size, {.input_chunks = size, .output_chunks = 1, .scratch_chunks = size - 1});
  for (const Rank rank : plan.ranks()) {
    const int node = tree.node(rank);
    const Rank parent = tree.rank(BinomialTree::parent(node));
    const auto source_of = [&](int other) {  // of the part of a node in the subtree
      return rank == root ? input(root, tree.rank(other)) : scratch(parent, other - BinomialTree::parent(node) - 1);
    };
    if (rank != root) plan.on(rank).wait(parent);
    for (const int child : tree.children_largest_first(node)) {
      for (int other = child; other < child + tree.span(child); ++other) {
        plan.on(rank).copy(source_of(other), {scratch(rank, other - node - 1)});
      }
      plan.on(rank).signal(tree.rank(child));
    }
    plan.on(rank).copy(source_of(node), {output(rank, 0)});
  }
  return std::move(plan).build();
}

}  // namespace

AlgorithmEntry scatter_binomial_entry() {
  return {.collective = Collective::kScatter,
          .name = "binomial",
          .make = scatter_binomial,
          .description = {.steps = "floor(log2 n)",
                          .bytes = "half of M by the root's first child",
                          .selected = AlgorithmDescription::kByName,
                          .source = "binomial tree; Thakur, Rabenseifner, Gropp 2005"}};
}

}  // namespace accord::plan
