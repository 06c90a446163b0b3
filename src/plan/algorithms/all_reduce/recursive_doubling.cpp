// Recursive doubling all-reduce: all ranks of a block have its sum once each has added that of the other half, which
// it reads from its partner there; blocks double along the canonical tree. A rank's sum over each block has its own
// chunk, since others read it while the rank goes on. If n is not a power of two, the halves are unequal, and a rank
// of the smaller half serves several of the larger; there are no more steps than for the next power of two. Sums
// travel in partials. For small messages.

#include <bit>

#include "plan/algorithms.hpp"
#include "plan/algorithms/canonical_tree.hpp"

namespace accord::plan {
namespace {

// The partials chunk that holds sums over a block of `ranks` ranks.
int partials_of(int ranks) { return static_cast<int>(std::bit_width(static_cast<unsigned>(ranks - 1))) - 1; }

Result<Plan> all_reduce_recursive_doubling(const topology::Topology& topology, const Request& request) {
  const int size = topology.size();
  PlanBuilder plan("recursive_doubling", request, size,
                   {.input_chunks = 1,
                    .output_chunks = 1,
                    .scratch_chunks = size > 1 ? 1 : 0,
                    .partial_chunks = size > 1 ? partials_of(size) : 0});
  plan.set_order(Order::kCanonical);
  plan.set_pacing(Pacing::kByPlan);
  for (const Rank rank : plan.ranks()) {
    Chunk sum = input(rank, 0);
    plan.on(rank).copy(sum, {size > 1 ? scratch(rank, 0) : output(rank, 0)});
    for (const Merge& merge : merges_of(rank, size)) {
      const Rank from = merge.partner(rank);
      for (const Rank reader : merge.served_by(rank)) plan.on(rank).signal(reader);
      plan.on(rank).wait(from);
      const int theirs = merge.other_half_of(rank), both = merge.last - merge.first;
      const Chunk grown = both == size ? output(rank, 0) : partials(rank, partials_of(both));
      plan.on(rank).reduce(
          in_order(merge, rank, sum, theirs == 1 ? scratch(from, 0) : partials(from, partials_of(theirs))), {grown});
      sum = grown;
    }
  }
  return std::move(plan).build();
}

}  // namespace

AlgorithmEntry all_reduce_recursive_doubling_entry() {
  return {.collective = Collective::kAllReduce,
          .name = "recursive_doubling",
          .make = all_reduce_recursive_doubling,
          .order = Order::kCanonical,
          .description = {.steps = "ceil(log2 n)",
                          .bytes = "ceil(log2 n) M",
                          .selected = AlgorithmDescription::kByName,
                          .source = "Thakur, Rabenseifner, Gropp 2005, section 4.5"}};
}

}  // namespace accord::plan
