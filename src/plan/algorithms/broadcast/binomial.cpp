// Binomial broadcast: each rank that has the message publishes it and notifies the roots of its subtrees, the largest
// first.

#include "plan/algorithms.hpp"
#include "plan/algorithms/binomial_tree.hpp"

namespace accord::plan {
namespace {

Result<Plan> broadcast_binomial(const topology::Topology& topology, const Request& request) {
  const BinomialTree tree(topology.size(), request.root);
  PlanBuilder plan("binomial", request, topology.size(),
                   {.input_chunks = 1, .output_chunks = 1, .scratch_chunks = topology.size() > 1 ? 1 : 0});
  for (const Rank rank : plan.ranks()) {
    const std::vector<int> children = tree.children_largest_first(tree.node(rank));
    std::vector<Chunk> destinations;
    if (!children.empty()) destinations.push_back(scratch(rank, 0));
    if (rank == request.root) {
      plan.on(rank).copy(input(rank, 0), std::move(destinations));
    } else {
      const Rank parent = tree.rank(BinomialTree::parent(tree.node(rank)));
      destinations.insert(destinations.begin(), output(rank, 0));
      plan.on(rank).wait(parent).copy(scratch(parent, 0), std::move(destinations));
    }
    for (const int child : children) plan.on(rank).signal(tree.rank(child));
  }
  return std::move(plan).build();
}

}  // namespace

AlgorithmEntry broadcast_binomial_entry() {
  return {.collective = Collective::kBroadcast,
          .name = "binomial",
          .make = broadcast_binomial,
          .description = {.steps = "floor(log2 n)",
                          .bytes = "M",
                          .selected = AlgorithmDescription::kByName,
                          .source = "Thakur, Rabenseifner, Gropp 2005, section 4.2"}};
}

}  // namespace accord::plan
