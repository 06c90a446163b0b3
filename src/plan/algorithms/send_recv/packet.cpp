// Packet send/recv: the sender writes its buffer as packets to the receiver. Always a plan over two ranks, whatever
// group they belong to.
// Steps: 1, without a signal after the data. Moved: the message once. For small messages; packets are those of NCCL's
// LL protocol.

#include "plan/algorithms/catalog.hpp"

namespace accord::plan {

Result<Plan> send_recv_packet(const topology::Topology&, const Request& request) {
  PlanBuilder plan("packet", request, 2, {.input_chunks = 1, .output_chunks = 1, .packet_chunks = 1});
  for (const Rank rank : plan.ranks()) {
    if (rank == 0) plan.on(0).put_packets(input(0, 0), packets(1, 0));
    if (rank == 1) plan.on(1).copy(packets(1, 0), {output(1, 0)});
  }
  return std::move(plan).build();
}

}  // namespace accord::plan
