// Direct reduce: each rank publishes its buffer to the root, which adds them all in rank order, the canonical order.

#include "plan/algorithms.hpp"
#include "plan/algorithms/exchange.hpp"

namespace accord::plan {
namespace {

Result<Plan> reduce_direct(const topology::Topology& topology, const Request& request) {
  const Rank root = request.root;
  const int size = topology.size();
  PlanBuilder plan("direct", request, size,
                   {.input_chunks = 1, .output_chunks = 1, .scratch_chunks = published_chunks(topology)});
  plan.set_order(Order::kCanonical);
  for (const Rank rank : plan.ranks()) {
    if (rank != root) {
      publish(plan, topology, rank, input(rank, 0), {root});
      continue;
    }
    for (const Rank peer : peers_of(root, size)) plan.on(root).wait(peer);
    std::vector<Chunk> sources;
    for (const Rank peer : topology.ranks())
      sources.push_back(peer == root ? input(root, 0) : published_chunk(topology, peer, root));
    plan.on(root).reduce(std::move(sources), {output(root, 0)});
  }
  return std::move(plan).build();
}

}  // namespace

AlgorithmEntry reduce_direct_entry() {
  return {.collective = Collective::kReduce,
          .name = "direct",
          .make = reduce_direct,
          .order = Order::kCanonical,
          .spans_hosts = true,
          .description = {.steps = "1",
                          .bytes = "(n - 1) M by the root",
                          .selected = "256 B to 32 KB; several hosts: from 2 KB",
                          .source = "flat tree; Graham, Shipman 2008"}};
}

}  // namespace accord::plan
