#pragma once
// Goes through a plan's programs in one order in which they may run.

#include <vector>

#include "plan/plan.hpp"
#include "plan/step_rules.hpp"

namespace accord::plan {

/// Whether a rank waits, before round k, until every rank has completed round k - kRoundDepth.
enum class RoundGate : std::uint8_t { kOpen, kUntilCompleted };

/// What happens on the way. `lane` counts the lanes of all ranks, rank by rank.
class StepVisitor {
 public:
  virtual ~StepVisitor() = default;
  virtual void begin_round(int /*lane*/, int /*round*/) {}
  /// A lane comes to a lane barrier; step() follows when it passes.
  virtual void arrive(int /*lane*/, int /*round*/, const StepPlace& /*place*/, const Step& /*barrier*/) {}
  virtual Status step(int lane, int round, const StepPlace& place, const Step& step) = 0;
  virtual void end_round(int /*lane*/, int /*round*/) {}
};

/// The first of the lanes' numbers of each rank, then the number of all lanes.
std::vector<int> first_lanes(const Plan& plan);

/// Runs `rounds` rounds of all programs, those of a rank one after the other. A wait goes on once its signal was sent in its
/// round, a step that reads packets once they were put. Stops at the visitor's first error. Gives the places of the lanes
/// that wait for ever: none if all ended. Which steps run does not depend on the order: an event happens once a round
/// and stays. REQUIRES: the programs of all ranks; steps that pass check_step(); each event at most once a round.
Result<std::vector<StepPlace>> walk(const Plan& plan, int rounds, RoundGate gate, StepVisitor& visitor);

}  // namespace accord::plan
