// Direct reduce-scatter: each rank hands over the parts that belong to others, then adds its own part over all ranks
// in rank order, which is the canonical order.

#include "plan/algorithms.hpp"
#include "plan/algorithms/exchange.hpp"

namespace accord::plan {
namespace {

Result<Plan> reduce_scatter_direct(const topology::Topology& topology, const Request& request) {
  const int size = topology.size();
  PlanBuilder plan("direct", request, size, {.input_chunks = size, .output_chunks = 1, .scratch_chunks = size});
  plan.set_order(Order::kCanonical);
  plan.set_pacing(Pacing::kByPlan);
  for (const Rank rank : plan.ranks()) {
    std::vector<Chunk> sources = exchange_parts(plan, topology, rank, 0);
    plan.on(rank).reduce(std::move(sources), {output(rank, 0)});
  }
  return std::move(plan).build();
}

}  // namespace

AlgorithmEntry reduce_scatter_direct_entry() {
  return {.collective = Collective::kReduceScatter,
          .name = "direct",
          .make = reduce_scatter_direct,
          .order = Order::kCanonical,
          .spans_hosts = true,
          .description = {.steps = "1",
                          .bytes = "(n - 1)/n M",
                          .selected = "from 256 B; several hosts: from 2 KB",
                          .source = "direct exchange; Thakur, Rabenseifner, Gropp 2005"}};
}

}  // namespace accord::plan
