// The kind is the last byte, so that the plan begins at aligned memory.
#include "engine/serving/plan_message.hpp"

#include <fmt/format.h>

namespace accord::engine {

void write_message(PlanMessage kind, const StepPlan& plan, std::vector<std::byte>& bytes) {
  bytes.clear();
  if (kind == PlanMessage::kStep) pack(plan, bytes);
  bytes.push_back(static_cast<std::byte>(kind));
}

Result<PlanMessage> read_message(std::span<const std::byte> bytes, const PlanLimits& limits, StepPlan& plan) {
  if (bytes.empty()) return Status(StatusCode::kCorrupt, "a message from rank 0 is empty");
  const auto kind = static_cast<PlanMessage>(bytes.back());
  const auto rest = bytes.first(bytes.size() - 1);
  switch (kind) {
    case PlanMessage::kStep: ACCORD_RETURN_IF_ERROR(unpack(rest, limits, plan)); return kind;
    case PlanMessage::kIdle:
    case PlanMessage::kEnd:
      if (!rest.empty()) break;
      return kind;
  }
  return Status(StatusCode::kCorrupt, fmt::format("a message of {} bytes from rank 0 has kind {}, which is not valid",
                                                  bytes.size(), static_cast<int>(bytes.back())));
}

}  // namespace accord::engine
