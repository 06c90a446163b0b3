#pragma once
// What rank 0 sends to the others: a kind, and for a step its plan.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/serving/step_plan.hpp"

namespace accord::engine {

enum class PlanMessage : std::uint8_t { kStep = 1, kIdle = 2, kEnd = 3 };

/// Makes `bytes` a message; `plan` counts for a step only.
void write_message(PlanMessage kind, const StepPlan& plan, std::vector<std::byte>& bytes);
/// Reads it; kCorrupt if it is none. `plan` is set by a step only.
Result<PlanMessage> read_message(std::span<const std::byte> bytes, const PlanLimits& limits, StepPlan& plan);

}  // namespace accord::engine
