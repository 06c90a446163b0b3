// Binomial reduce: the sum over each block of the canonical tree is computed by one rank of it, the root if it is in
// the block, otherwise the first rank, which adds the other half's sum to its own. Any root therefore gets
// bit-identical results. Sums travel in partials.

#include "plan/algorithms.hpp"
#include "plan/algorithms/canonical_tree.hpp"

namespace accord::plan {
namespace {

Result<Plan> reduce_binomial(const topology::Topology& topology, const Request& request) {
  const Rank root = request.root;
  const int size = topology.size();
  const auto leader = [root](Rank first, Rank last) { return first <= root && root < last ? root : first; };
  PlanBuilder plan(
      "binomial", request, size,
      {.input_chunks = 1, .output_chunks = 1, .scratch_chunks = size > 1 ? 1 : 0, .partial_chunks = size > 2 ? 1 : 0});
  plan.set_order(Order::kCanonical);
  for (const Rank rank : plan.ranks()) {
    if (size == 1) plan.on(rank).copy(input(rank, 0), {output(rank, 0)});
    Chunk sum = input(rank, 0);
    for (const Merge& merge : merges_of(rank, size)) {
      const Rank block_leader = leader(merge.first, merge.last);
      if (rank != block_leader) {
        if (sum.space == Space::kInput) plan.on(rank).copy(sum, {scratch(rank, 0)});
        plan.on(rank).signal(block_leader);
        break;
      }
      const Rank from = merge.on_left(rank) ? leader(merge.middle, merge.last) : leader(merge.first, merge.middle);
      const Chunk grown = merge.last - merge.first == size ? output(rank, 0) : partials(rank, 0);
      plan.on(rank).wait(from).reduce(
          in_order(merge, rank, sum, merge.other_half_of(rank) == 1 ? scratch(from, 0) : partials(from, 0)), {grown});
      sum = grown;
    }
  }
  return std::move(plan).build();
}

}  // namespace

AlgorithmEntry reduce_binomial_entry() {
  return {.collective = Collective::kReduce,
          .name = "binomial",
          .make = reduce_binomial,
          .order = Order::kCanonical,
          .description = {.steps = "at most ceil(log2 n)",
                          .bytes = "at most ceil(log2 n) M",
                          .selected = AlgorithmDescription::kByName,
                          .source = "Thakur, Rabenseifner, Gropp 2005, section 4.4"}};
}

}  // namespace accord::plan
