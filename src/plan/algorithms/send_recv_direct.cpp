// Direct send/recv: the sender copies its buffer to its scratch and signals; the receiver copies it from there. Rounds
// overlap, so a long message is a pipeline of two slots. Always a plan over two ranks, whatever group they belong to.
// Steps: 1. Moved: the message, written once and read once.

#include "plan/algorithms/catalog.hpp"

namespace accord::plan {

Result<Plan> send_recv_direct(const topology::Topology&, const Request& request) {
  PlanBuilder plan("direct", request, 2, {.input_chunks = 1, .output_chunks = 1, .scratch_chunks = 1});
  for (const Rank rank : plan.ranks()) {
    if (rank == 0) plan.on(0).copy(input(0, 0), {scratch(0, 0)}).signal(1);
    if (rank == 1) plan.on(1).wait(0).copy(scratch(0, 0), {output(1, 0)});
  }
  return std::move(plan).build();
}

}  // namespace accord::plan
