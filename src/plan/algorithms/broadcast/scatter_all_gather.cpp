// Scatter and all-gather broadcast: the root publishes the message in chunks. Each rank takes its own chunk from
// there, and then the others from the ranks that took them, so that the load on the root's memory is spread over all
// ranks. A rank reads (n - 2)/n of the message from others than the root. Also in Thakur, Rabenseifner, Gropp 2005,
// section 4.2.

#include "plan/algorithms.hpp"
#include "plan/algorithms/exchange.hpp"

namespace accord::plan {
namespace {

Result<Plan> broadcast_scatter_all_gather(const topology::Topology& topology, const Request& request) {
  constexpr int kScattered = 0;
  constexpr int kPartReady = 1;
  const Rank root = request.root;
  const int size = topology.size();
  PlanBuilder plan("scatter_all_gather", request, size,
                   {.input_chunks = size, .output_chunks = size, .scratch_chunks = size});
  for (const Rank rank : plan.ranks()) {
    if (rank == root) {
      for (const Rank peer : peers_of(root, size)) {
        plan.on(root).copy(input(root, peer), {scratch(root, peer)}).signal(peer, kScattered);
      }
      if (size > 1) plan.on(root).copy(input(root, root), {scratch(root, root)});
      for (const Rank peer : peers_of(root, size)) plan.on(root).signal(peer, kPartReady);
      continue;
    }
    std::vector<Chunk> destinations = {output(rank, rank)};
    if (size > 2) destinations.push_back(scratch(rank, rank));
    plan.on(rank).wait(root, kScattered).copy(scratch(root, rank), std::move(destinations));
    for (const Rank peer : peers_of(rank, size)) {
      if (peer != root) plan.on(rank).signal(peer, kPartReady);
    }
    for (const Rank peer : peers_of(rank, size)) {
      plan.on(rank).wait(peer, kPartReady).copy(scratch(peer, peer), {output(rank, peer)});
    }
  }
  return std::move(plan).build();
}

}  // namespace

AlgorithmEntry broadcast_scatter_all_gather_entry() {
  return {.collective = Collective::kBroadcast,
          .name = "scatter_all_gather",
          .make = broadcast_scatter_all_gather,
          .description = {.steps = "2",
                          .bytes = "M",
                          .selected = AlgorithmDescription::kByName,
                          .source = "Barnett, van de Geijn and others 1994"}};
}

}  // namespace accord::plan
