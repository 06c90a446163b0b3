// Two-shot all-reduce: each rank adds its own chunk over all ranks, in rank order, then all ranks gather the sums. A
// rank signals the owner of a chunk as soon as that chunk is in its scratch. Scratch chunk r of rank r, which is
// unused in the first shot (the rank reads its own part in place), holds the sum for the second. For ranks of other
// hosts, sums have separate chunks, since those of the first shot may still be read.

#include "plan/algorithms.hpp"
#include "plan/algorithms/exchange.hpp"

namespace accord::plan {
namespace {

Result<Plan> all_reduce_two_shot(const topology::Topology& topology, const Request& request) {
  constexpr int kPartReady = 0;
  constexpr int kSumReady = 1;
  const int size = topology.size();
  const int chunks = topology.host_count() == 1 ? size : 2 * size;
  PlanBuilder plan("two_shot", request, size, {.input_chunks = size, .output_chunks = size, .scratch_chunks = chunks});
  const auto sum_of = [&](Rank owner, Rank reader) {
    return share_host(topology, owner, reader) ? scratch(owner, owner) : scratch(reader, size + owner);
  };
  plan.set_order(Order::kCanonical);
  plan.set_pacing(Pacing::kByPlan);
  for (const Rank rank : plan.ranks()) {
    std::vector<Chunk> sources = exchange_parts(plan, topology, rank, kPartReady), sums = {output(rank, rank)};
    if (size > 1) sums.push_back(scratch(rank, rank));
    plan.on(rank).reduce(std::move(sources), std::move(sums));
    for (const Rank peer : peers_of(rank, size)) {
      if (!share_host(topology, rank, peer)) plan.on(rank).copy(output(rank, rank), {sum_of(rank, peer)});
      plan.on(rank).signal(peer, kSumReady);
    }
    for (const Rank peer : peers_of(rank, size)) {
      plan.on(rank).wait(peer, kSumReady).copy(sum_of(peer, rank), {output(rank, peer)});
    }
  }
  return std::move(plan).build();
}

}  // namespace

AlgorithmEntry all_reduce_two_shot_entry() {
  return {.collective = Collective::kAllReduce,
          .name = "two_shot",
          .make = all_reduce_two_shot,
          .order = Order::kCanonical,
          .spans_hosts = true,
          .description = {.steps = "2",
                          .bytes = "2 (n - 1)/n M",
                          .selected = "from 8 KB (2 ranks: 192 KB; from 9 ranks: 1 KB)",
                          .source = "Thakur, Rabenseifner, Gropp 2005, section 4.5"}};
}

}  // namespace accord::plan
