// Broadcast by a switch: the root writes its buffer to all ranks at once, and they copy it from their own memory.

#include "plan/algorithms.hpp"
#include "plan/algorithms/exchange.hpp"

namespace accord::plan {
namespace {

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

}  // namespace

AlgorithmEntry broadcast_nvls_entry() {
  return {.collective = Collective::kBroadcast,
          .name = "nvls",
          .make = broadcast_nvls,
          .multicasts = true,
          .description = {.steps = "1",
                          .bytes = "M by the root, whatever n",
                          .selected = AlgorithmDescription::kByName,
                          .source = "NVLink SHARP; NCCL 2.17"}};
}

}  // namespace accord::plan
