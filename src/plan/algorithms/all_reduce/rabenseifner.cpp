// Rabenseifner's all-reduce: a reduce-scatter by recursive halving, then an all-gather by recursive doubling, both
// along the canonical tree. The scratch chunk in which a rank published data for others to add later holds their sum,
// which is stored there when the others are done. Sums travel in partials.

#include "plan/algorithms.hpp"
#include "plan/algorithms/canonical_tree.hpp"

namespace accord::plan {
namespace {

Result<Plan> all_reduce_rabenseifner(const topology::Topology& topology, const Request& request) {
  constexpr int kPartReady = 0;
  constexpr int kSumReady = 1;
  const int size = topology.size();
  PlanBuilder plan(
      "rabenseifner", request, size,
      {.input_chunks = size, .output_chunks = size, .scratch_chunks = size, .partial_chunks = size > 2 ? size : 0});
  plan.set_order(Order::kCanonical);
  plan.set_pacing(Pacing::kByPlan);
  for (const Rank rank : plan.ranks()) {
    std::vector<Chunk> sums = {output(rank, rank)};
    if (size > 1) sums.push_back(scratch(rank, rank));
    reduce_by_halving(plan, rank, size, kPartReady, std::move(sums));
    gather_by_doubling(plan, rank, size, kSumReady);
  }
  return std::move(plan).build();
}

}  // namespace

AlgorithmEntry all_reduce_rabenseifner_entry() {
  return {.collective = Collective::kAllReduce,
          .name = "rabenseifner",
          .make = all_reduce_rabenseifner,
          .order = Order::kCanonical,
          .description = {.steps = "2 ceil(log2 n)",
                          .bytes = "2 (n - 1)/n M, below 3 M if n is not a power of two",
                          .selected = AlgorithmDescription::kByName,
                          .source = "Rabenseifner 2004"}};
}

}  // namespace accord::plan
