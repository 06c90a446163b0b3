// Broadcast by a switch: the root writes its buffer to all ranks at once, and they copy it from their own memory.
// Steps: 1. Moved per rank: by the root the message once, however many ranks there are. NVLink SHARP; NCCL 2.17.

#include "plan/algorithms/catalog.hpp"

namespace accord::plan {

Result<Plan> broadcast_nvls(const topology::Topology& topology, const Request& request) {
  const Rank root = request.root;
  PlanBuilder plan("nvls", request, topology.size(), {.input_chunks = 1, .output_chunks = 1, .multicast_chunks = 1});
  for (const Rank rank : plan.ranks()) {
    if (rank != root) {
      plan.on(rank).wait(root).copy(multicast(rank, 0), {output(rank, 0)});
      continue;
    }
    if (topology.size() > 1) plan.on(root).copy(input(root, 0), {multicast(kEveryRank, 0)});
    for (const Rank peer : peers_of(root, topology.size())) plan.on(root).signal(peer);
  }
  return std::move(plan).build();
}

}  // namespace accord::plan
