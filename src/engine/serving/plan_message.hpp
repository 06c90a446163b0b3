#pragma once
// The messages from rank 0 to the others: a kind, and the plan of a step.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/serving/step_plan.hpp"

namespace accord::engine {

enum class PlanMessage : std::uint8_t { kStep = 1, kIdle = 2, kEnd = 3 };

/// Writes a message into `bytes`. `plan` is used for a step only.
void write_message(PlanMessage kind, const StepPlan& plan, std::vector<std::byte>& bytes);
/// Reads a message. Fails with kCorrupt if it is invalid. Sets `plan` for a step only.
Result<PlanMessage> read_message(std::span<const std::byte> bytes, const PlanLimits& limits, StepPlan& plan);

}  // namespace accord::engine
