// Two stages: what each step and each pair of steps shows by itself (pairing), then all programs together, run on
// terms instead of numbers (symbolic_run). A plan that paces itself is run without the executor's gate, which proves
// more. If that fails, a run with the gate shows whether the pacing is wrong or something simpler.

#include "plan/verifier.hpp"

#include <algorithm>

#include "plan/verifier/pairing.hpp"
#include "plan/verifier/symbolic_run.hpp"

namespace accord::plan {

Status verify(const Plan& plan, Aliasing aliasing) {
  ACCORD_RETURN_IF_ERROR(check_pairing(plan));
  if (plan.pacing == Pacing::kByPlan) {
    Status open = SymbolicRun(plan, aliasing, RoundGate::kOpen).check();
    if (open.ok()) return open;
    const Status gated = SymbolicRun(plan, aliasing, RoundGate::kUntilCompleted).check();
    return gated.ok() ? open : gated;
  }
  return SymbolicRun(plan, aliasing, RoundGate::kUntilCompleted).check();
}

Status verify_without_packets(const Plan& plan) {
  const bool has_lanes =
      std::ranges::any_of(plan.programs, [](const Program& program) { return program.lanes.size() > 1; });
  if (!mixes_packets(plan) && !(plan.packet_chunks > 0 && has_lanes)) return {};
  const auto check = [&](Aliasing aliasing) {
    return SymbolicRun(plan, aliasing, RoundGate::kUntilCompleted, PacketOrder::kOfPackets).check();
  };
  ACCORD_RETURN_IF_ERROR(check(Aliasing::kOutOfPlace));
  return plan.buffers == Buffers::kInWindowsApart ? Status() : check(Aliasing::kInPlace);
}

bool mixes_packets(const Plan& plan) {
  const bool shares = plan.scratch_chunks > 0 || plan.partial_chunks > 0 || plan.multicast_chunks > 0;
  return plan.packet_chunks > 0 && (shares || plan.buffers != Buffers::kAnywhere);
}

Status verify_for_calls(const Plan& plan) {
  ACCORD_RETURN_IF_ERROR(verify(plan, Aliasing::kOutOfPlace));
  if (plan.buffers == Buffers::kInWindowsApart) return {};
  return verify(plan, Aliasing::kInPlace).with_context("in place (input and output are the same memory)");
}

}  // namespace accord::plan
