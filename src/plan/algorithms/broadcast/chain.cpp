// Pipelined chain broadcast: the message travels in chunks from rank to rank, starting at the root; while one chunk is
// on its way to the second rank, the next is on its way to the first. There are as many chunks as ranks, and two
// rounds may be in flight, so that a long message keeps the whole chain busy. A chunk takes n - 1 steps.

#include "plan/algorithms.hpp"

namespace accord::plan {
namespace {

Result<Plan> broadcast_chain(const topology::Topology& topology, const Request& request) {
  const Rank root = request.root;
  const int size = topology.size();
  PlanBuilder plan("chain", request, size, {.input_chunks = size, .output_chunks = size, .scratch_chunks = size});
  for (const Rank rank : plan.ranks()) {
    const Rank before = (rank + size - 1) % size, after = (rank + 1) % size;
    const bool has_next = after != root;
    for (int chunk = 0; chunk < size; ++chunk) {
      std::vector<Chunk> destinations;
      if (has_next) destinations.push_back(scratch(rank, chunk));
      if (rank == root) {
        plan.on(rank).copy(input(rank, chunk), std::move(destinations));
      } else {
        destinations.insert(destinations.begin(), output(rank, chunk));
        plan.on(rank).wait(before, chunk).copy(scratch(before, chunk), std::move(destinations));
      }
      if (has_next) plan.on(rank).signal(after, chunk);
    }
  }
  return std::move(plan).build();
}

}  // namespace

AlgorithmEntry broadcast_chain_entry() {
  return {.collective = Collective::kBroadcast,
          .name = "chain",
          .make = broadcast_chain,
          .description = {.steps = "2 (n - 1), of M/n each",
                          .bytes = "M",
                          .selected = AlgorithmDescription::kByName,
                          .source = "pipeline; Pjesivac-Grbovic and others 2007"}};
}

}  // namespace accord::plan
