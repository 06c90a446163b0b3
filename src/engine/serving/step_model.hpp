#pragma once
// The interface of the models that Generation runs: a model with a paged cache.

#include <algorithm>
#include <span>

#include "accord/status.hpp"
#include "engine/program/token_choice.hpp"
#include "engine/serving/step_plan.hpp"

namespace accord::engine {

/// One rank's part of a model and of its cache. Plans arrive in the same order on all ranks, one at a time, from one
/// thread.
class StepModel {
 public:
  virtual ~StepModel() = default;

  /// The limits of this model's cache and vocabulary; equal on all ranks.
  virtual const PlanLimits& limits() const = 0;
  /// Returns how many rows the encoder makes of a request's source; 0 if the model has no encoder. Fails with
  /// kInvalidArgument if the source does not fit the encoder. Thread-safe.
  virtual Result<std::int32_t> source_rows(std::span<const SourceTensor> source) const {
    if (source.empty()) return 0;
    return Status(StatusCode::kInvalidArgument, "the model has no encoder, so that a request cannot have a source");
  }
  /// Runs `plan`, which has passed check_plan(). Collective: a failure on one rank must end the call on the others
  /// too, as in Engine::run(). Not called again after a failure.
  virtual Status run(const StepPlan& plan) = 0;
  /// On the rank that samples (rank 0), after run(): sets a token for each of `choices`, whose rows are indices in the
  /// plan's logit_rows, or kNoToken if the caller must sample from the logits itself. The default leaves all of them
  /// to the caller.
  virtual Status choose(std::span<const TokenChoice> choices, std::span<TokenId> tokens) {
    std::fill_n(tokens.begin(), choices.size(), kNoToken);
    return Status();
  }
  /// On the same rank: reads logits as fp32, for the wanted rows from `first` on. Reads as many rows of the entire
  /// vocabulary as `logits` holds.
  virtual Status read_logits(std::size_t first, std::span<float> logits) = 0;
  /// Switches to weights that have arrived since the last call. Returns true if there were any; the contents of the
  /// cache are then invalid. Called between two runs, for models on one rank.
  virtual bool use_newest_weights() { return false; }
};

}  // namespace accord::engine
