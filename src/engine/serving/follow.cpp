// The other ranks have no scheduler: they run the plans in the order in which they arrive.
#include "engine/serving/generation.hpp"
#include "engine/serving/plan_message.hpp"

namespace accord::engine {
namespace {

Status follow_until_end(StepModel& model, PlanChannel& channel) {
  std::vector<std::byte> message;
  StepPlan plan;
  for (;;) {
    ACCORD_RETURN_IF_ERROR(channel.receive(message));
    ACCORD_ASSIGN_OR_RETURN(const PlanMessage kind, read_message(message, model.limits(), plan));
    if (kind == PlanMessage::kEnd) return Status();
    if (kind == PlanMessage::kStep) ACCORD_RETURN_IF_ERROR(model.run(plan));
  }
}

}  // namespace

Status follow(StepModel& model, PlanChannel& channel) {
  Status status = follow_until_end(model, channel);
  if (!status.ok()) channel.fail(status);
  return status;
}

}  // namespace accord::engine
