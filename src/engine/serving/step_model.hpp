#pragma once
// What Generation runs: a model with a paged cache.

#include <span>

#include "accord/status.hpp"
#include "engine/serving/step_plan.hpp"

namespace accord::engine {

/// One rank's part of a model and of its cache. Plans come in the same order on all ranks, one at a time, from one
/// thread.
class StepModel {
 public:
  virtual ~StepModel() = default;

  /// Of this model's cache and vocabulary, equal on all ranks.
  virtual const PlanLimits& limits() const = 0;
  /// Runs `plan`, which check_plan() found no fault in. `logits`: for each wanted row one of the whole vocabulary, in
  /// fp32, on the rank that samples (rank 0); empty on the others. Collective: a failure on one rank must end the call
  /// on the others too, as Engine's run() does. After a failure it is not called again.
  virtual Status run(const StepPlan& plan, std::span<float> logits) = 0;
  /// Takes weights that came since the last call; true if there were any: then what the cache holds is of no use any more.
  /// Between two runs, of a model on one rank.
  virtual bool take_newest_weights() { return false; }
};

}  // namespace accord::engine
