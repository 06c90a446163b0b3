// Pairwise all-to-all: in step k rank r exchanges parts with rank k - r (modulo n), which exchanges with r in the same
// step. For any n, a rank meets every other once, and itself once. This works in place, since the part that arrives
// replaces the one that was sent. The pairing is that of a round-robin tournament, for which n need not be a power of
// two.

#include "plan/algorithms.hpp"

namespace accord::plan {
namespace {

Result<Plan> all_to_all_pairwise(const topology::Topology& topology, const Request& request) {
  const int size = topology.size();
  PlanBuilder plan("pairwise", request, size, {.input_chunks = size, .output_chunks = size, .scratch_chunks = size});
  plan.set_pacing(Pacing::kByPlan);
  for (const Rank rank : plan.ranks()) {
    for (int step = 0; step < size; ++step) {
      const Rank peer = (step + size - rank) % size;
      if (peer == rank) {
        plan.on(rank).copy(input(rank, rank), {output(rank, rank)});
        continue;
      }
      plan.on(rank).copy(input(rank, peer), {scratch(rank, peer)}).signal(peer);
      plan.on(rank).wait(peer).copy(scratch(peer, rank), {output(rank, peer)});
    }
  }
  return std::move(plan).build();
}

}  // namespace

AlgorithmEntry all_to_all_pairwise_entry() {
  return {.collective = Collective::kAllToAll,
          .name = "pairwise",
          .make = all_to_all_pairwise,
          .description = {.steps = "n - 1",
                          .bytes = "(n - 1)/n M, from one rank at a time",
                          .selected = AlgorithmDescription::kByName,
                          .source = "Thakur, Rabenseifner, Gropp 2005, section 4.3"}};
}

}  // namespace accord::plan
