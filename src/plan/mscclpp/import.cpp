// Read, run, emit; then the verifier decides. A plan declares its order and pacing, which MSCCL++'s plans do not, so
// the strongest valid claims are searched for: first a plan without claims must be correct, then each claim is tried.
// If the plan is only correct with separate buffers, inputs are staged.

#include <algorithm>

#include "plan/mscclpp.hpp"
#include "plan/mscclpp/emit.hpp"
#include "plan/verifier.hpp"

namespace accord::plan {
namespace {

using mscclpp::EmitOptions;

Result<Plan> verified(const mscclpp::ExecutionPlan& plan, const mscclpp::Flow& flow, const EmitOptions& options) {
  ACCORD_ASSIGN_OR_RETURN(Plan made, mscclpp::emit(plan, flow, options));
  ACCORD_RETURN_IF_ERROR(verify_for_calls(made));
  return made;
}

bool adds_by_switch(const mscclpp::Flow& flow) {
  return std::ranges::any_of(flow.steps, [](const mscclpp::FlowStep& step) {
    return step.kind == mscclpp::FlowStep::Kind::kSwitch && step.sources.size() > 1;
  });
}

}  // namespace

Result<Plan> import_mscclpp(std::string_view text, SwitchOps ops) {
  ACCORD_ASSIGN_OR_RETURN(const mscclpp::ExecutionPlan plan, mscclpp::read(text));
  ACCORD_ASSIGN_OR_RETURN(const mscclpp::Flow flow, mscclpp::flow_of(plan, ops));
  const bool reduces = traits_of(plan.collective).reduces;
  const bool by_switch = reduces && adds_by_switch(flow);
  EmitOptions options{.order = by_switch ? Order::kSwitch : reduces ? Order::kFixed : Order::kNone};
  Result<Plan> best = verified(plan, flow, options);
  if (!best.ok()) {
    const Status first = best.status();
    options.stage_inputs = true;
    best = verified(plan, flow, options);
    if (!best.ok() && plan.has_switch_ops && ops == SwitchOps::kMulticast)
      return Status(first.code(), first.message() + " (its switch ops may be imported as ordinary copies and sums)");
    if (!best.ok()) return first;
  }
  Plan claiming = *best;
  if (reduces && !by_switch) claiming.order = Order::kCanonical;
  if (reduces && !by_switch && verify_for_calls(claiming).ok()) best = claiming;
  claiming = *best;
  claiming.pacing = Pacing::kByPlan;
  if (verify_for_calls(claiming).ok()) best = std::move(claiming);
  return best;
}

}  // namespace accord::plan
