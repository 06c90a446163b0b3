// Direct send/recv: the sender copies its buffer to its scratch (to the receiver's, if the receiver is on another
// host) and signals; the receiver copies it from there. Rounds overlap, so a long message is a pipeline of two slots.
// Always a plan over two ranks, whatever group they belong to.

#include "plan/algorithms.hpp"
#include "plan/algorithms/exchange.hpp"

namespace accord::plan {
namespace {

Result<Plan> send_recv_direct(const topology::Topology& topology, const Request& request) {
  PlanBuilder plan("direct", request, 2, {.input_chunks = 1, .output_chunks = 1, .scratch_chunks = 1});
  const bool reads = topology.size() < 2 || share_host(topology, 0, 1);
  const Chunk between = scratch(reads ? 0 : 1, 0);
  for (const Rank rank : plan.ranks()) {
    if (rank == 0) plan.on(0).copy(input(0, 0), {between}).signal(1);
    if (rank == 1) plan.on(1).wait(0).copy(between, {output(1, 0)});
  }
  return std::move(plan).build();
}

}  // namespace

AlgorithmEntry send_recv_direct_entry() {
  return {.collective = Collective::kSendRecv,
          .name = "direct",
          .make = send_recv_direct,
          .spans_hosts = true,
          .description = {.steps = "1",
                          .bytes = "M",
                          .selected = "from 128 B; several hosts: from 4 KB",
                          .source = "copy in, copy out"}};
}

}  // namespace accord::plan
