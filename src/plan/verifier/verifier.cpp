// Two stages: what each step and each pair of steps shows by itself (pairing), then all programs together, run on
// terms instead of numbers (symbolic_run). A plan that paces itself is run without the executor's gate, which proves
// more. If that fails, a run with the gate shows whether the pacing is wrong or something simpler.

#include "plan/verifier.hpp"

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

Status verify_for_calls(const Plan& plan) {
  ACCORD_RETURN_IF_ERROR(verify(plan, Aliasing::kOutOfPlace));
  if (plan.buffers == Buffers::kInWindowsApart) return {};
  return verify(plan, Aliasing::kInPlace).with_context("in place (input and output are the same memory)");
}

}  // namespace accord::plan
