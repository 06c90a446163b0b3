// Packet send/recv: the sender writes its buffer as packets to the receiver. Always a plan over two ranks, whatever
// group they belong to. For small messages: no signal follows the data.

#include "plan/algorithms.hpp"

namespace accord::plan {
namespace {

Result<Plan> send_recv_packet(const topology::Topology&, const Request& request) {
  PlanBuilder plan("packet", request, 2, {.input_chunks = 1, .output_chunks = 1, .packet_chunks = 1});
  for (const Rank rank : plan.ranks()) {
    if (rank == 0) plan.on(0).put_packets(input(0, 0), packets(1, 0));
    if (rank == 1) plan.on(1).copy(packets(1, 0), {output(1, 0)});
  }
  return std::move(plan).build();
}

}  // namespace

AlgorithmEntry send_recv_packet_entry() {
  return {.collective = Collective::kSendRecv,
          .name = "packet",
          .make = send_recv_packet,
          .spans_hosts = true,
          .description = {.steps = "1",
                          .bytes = "M",
                          .selected = "below 128 B; several hosts: below 4 KB",
                          .source = "the LL protocol of NCCL"}};
}

}  // namespace accord::plan
