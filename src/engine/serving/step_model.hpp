#pragma once
// What Generation runs: a model with a paged cache.

#include <algorithm>
#include <span>

#include "accord/status.hpp"
#include "engine/serving/step_plan.hpp"
#include "engine/serving/token_choice.hpp"

namespace accord::engine {

/// One rank's part of a model and of its cache. Plans come in the same order on all ranks, one at a time, from one
/// thread.
class StepModel {
 public:
  virtual ~StepModel() = default;

  /// Of this model's cache and vocabulary, equal on all ranks.
  virtual const PlanLimits& limits() const = 0;
  /// Runs `plan`, which check_plan() found no fault in. Collective: a failure on one rank must end the call on the others
  /// too, as Engine's run() does. After a failure it is not called again.
  virtual Status run(const StepPlan& plan) = 0;
  /// On the rank that samples (rank 0), after run(): sets a token for each of `choices`, whose rows are indices in the
  /// plan's logit_rows, or kNoToken where the caller has to look at the logits; that is all of them for models that
  /// choose none.
  virtual Status choose(std::span<const TokenChoice> choices, std::span<TokenId> tokens) {
    std::fill_n(tokens.begin(), choices.size(), kNoToken);
    return Status();
  }
  /// The same for logits in fp32: wanted rows from `first` on, as many of the whole vocabulary as `logits` holds.
  virtual Status read_logits(std::size_t first, std::span<float> logits) = 0;
  /// Takes weights that came since the last call; true if there were any: then what the cache holds is of no use any more.
  /// Between two runs, of a model on one rank.
  virtual bool take_newest_weights() { return false; }
};

}  // namespace accord::engine
