// Two-shot reduce: each rank adds its own chunk over all ranks, in rank order, then the root collects the sums.
// Scratch chunk r of rank r, which is unused in the first shot, holds the sum for the second; from other hosts the
// sum is then put into a chunk of the root's scratch.

#include "plan/algorithms.hpp"
#include "plan/algorithms/exchange.hpp"

namespace accord::plan {
namespace {

Result<Plan> reduce_two_shot(const topology::Topology& topology, const Request& request) {
  constexpr int kPartReady = 0;
  constexpr int kSumReady = 1;
  const Rank root = request.root;
  const int size = topology.size();
  const int chunks = topology.host_count() == 1 ? size : 2 * size;
  PlanBuilder plan("two_shot", request, size, {.input_chunks = size, .output_chunks = size, .scratch_chunks = chunks});
  const auto sum_of = [&](Rank owner) {
    return share_host(topology, owner, root) ? scratch(owner, owner) : scratch(root, size + owner);
  };
  plan.set_order(Order::kCanonical);
  plan.set_pacing(Pacing::kByPlan);
  for (const Rank rank : plan.ranks()) {
    std::vector<Chunk> sources = exchange_parts(plan, topology, rank, kPartReady);
    if (rank != root) {
      plan.on(rank).reduce(std::move(sources), {scratch(rank, rank)});
      if (!share_host(topology, rank, root)) plan.on(rank).copy(scratch(rank, rank), {sum_of(rank)});
      plan.on(rank).signal(root, kSumReady);
      continue;
    }
    plan.on(root).reduce(std::move(sources), {output(root, root)});
    for (const Rank peer : peers_of(root, size)) {
      plan.on(root).wait(peer, kSumReady).copy(sum_of(peer), {output(root, peer)});
    }
  }
  return std::move(plan).build();
}

}  // namespace

AlgorithmEntry reduce_two_shot_entry() {
  return {.collective = Collective::kReduce,
          .name = "two_shot",
          .make = reduce_two_shot,
          .order = Order::kCanonical,
          .spans_hosts = true,
          .description = {.steps = "2",
                          .bytes = "2 (n - 1)/n M by the root",
                          .selected = "from 32 KB",
                          .source = "Thakur, Rabenseifner, Gropp 2005, section 4.4"}};
}

}  // namespace accord::plan
