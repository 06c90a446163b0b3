// Binomial gather: each rank collects the parts of its subtree in its scratch, in the order of the nodes, before its
// parent takes them; the root stores each in its place. A part is moved once for each edge on its way.

#include <algorithm>

#include "plan/algorithms.hpp"
#include "plan/algorithms/binomial_tree.hpp"

namespace accord::plan {
namespace {

Result<Plan> gather_binomial(const topology::Topology& topology, const Request& request) {
  const Rank root = request.root;
  const int size = topology.size();
  const BinomialTree tree(size, root);
  int most = 0;  // parts collected by a rank other than the root
  for (const int child : tree.children(0)) most = std::max(most, tree.span(child));
  PlanBuilder plan("binomial", request, size, {.input_chunks = 1, .output_chunks = size, .scratch_chunks = most});
  for (const Rank rank : plan.ranks()) {
    const int node = tree.node(rank);
    const auto place_of = [&](int other) {  // of another node's part
      return rank == root ? output(root, tree.rank(other)) : scratch(rank, other - node);
    };
    plan.on(rank).copy(input(rank, 0), {place_of(node)});
    for (const int child : tree.children(node)) {
      plan.on(rank).wait(tree.rank(child));
      for (int offset = 0; offset < tree.span(child); ++offset) {
        plan.on(rank).copy(scratch(tree.rank(child), offset), {place_of(child + offset)});
      }
    }
    if (rank != root) plan.on(rank).signal(tree.rank(BinomialTree::parent(node)));
  }
  return std::move(plan).build();
}

}  // namespace

AlgorithmEntry gather_binomial_entry() {
  return {.collective = Collective::kGather,
          .name = "binomial",
          .make = gather_binomial,
          .description = {.steps = "floor(log2 n)",
                          .bytes = "(n - 1)/n M by the root",
                          .selected = AlgorithmDescription::kByName,
                          .source = "binomial tree; Thakur, Rabenseifner, Gropp 2005"}};
}

}  // namespace accord::plan
