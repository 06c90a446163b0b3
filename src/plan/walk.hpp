#pragma once
// Walks a plan's programs in one possible execution order.

#include <vector>

#include "plan/plan.hpp"
#include "plan/step_rules.hpp"

namespace accord::plan {

/// Whether a rank waits, before round k, until every rank has completed round k - kRoundDepth.
enum class RoundGate : std::uint8_t { kOpen, kUntilCompleted };

/// Callbacks during the walk. `lane` counts the lanes of all ranks, rank by rank.
class StepVisitor {
 public:
  virtual ~StepVisitor() = default;
  virtual void begin_round(int /*lane*/, int /*round*/) {}
  /// A lane reaches a lane barrier; step() follows when it passes.
  virtual void arrive(int /*lane*/, int /*round*/, const StepPlace& /*place*/, const Step& /*barrier*/) {}
  virtual Status step(int lane, int round, const StepPlace& place, const Step& step) = 0;
  virtual void end_round(int /*lane*/, int /*round*/) {}
};

/// The first lane number of each rank, then the total number of lanes.
std::vector<int> first_lanes(const Plan& plan);

/// Runs `rounds` rounds of all programs, a rank's rounds one after the other. A wait continues once its signal was
/// sent in its round, a step that reads packets once they were put. Stops at the visitor's first error. Returns the
/// places of the lanes that wait forever: none if all ended. Which steps run does not depend on the order, since an
/// event happens once a round and remains. REQUIRES: the programs of all ranks; steps that pass check_step(); each
/// event at most once a round.
Result<std::vector<StepPlace>> walk(const Plan& plan, int rounds, RoundGate gate, StepVisitor& visitor);

}  // namespace accord::plan
