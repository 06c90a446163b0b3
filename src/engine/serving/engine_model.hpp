#pragma once
// A loaded language model as the model that a Generation runs.

#include <memory>
#include <vector>

#include "accord/language_model.hpp"
#include "engine/runtime/loaded_engine.hpp"
#include "engine/runtime/run_context.hpp"
#include "engine/serving/step_model.hpp"

namespace accord::engine {

/// Takes input_ids, positions and rows, gives logits, as python/accord/export_language_model.py makes them.
class EngineModel final : public StepModel {
 public:
  /// kUnsupported if the engine is no language model; kInvalidArgument and kResourceExhausted for options that cannot be.
  static Result<std::shared_ptr<EngineModel>> create(std::shared_ptr<LoadedEngine> engine,
                                                     const LanguageModelOptions& options);

  const PlanLimits& limits() const override { return limits_; }
  Status run(const StepPlan& plan) override;
  /// By an engine on a device.
  Status choose(std::span<const TokenChoice> choices, std::span<TokenId> tokens) override;
  Status read_logits(std::size_t first, std::span<float> logits) override;
  bool take_newest_weights() override { return context_.take_newest_weights(); }

  std::size_t cache_bytes() const { return context_.cache_bytes(); }

 private:
  explicit EngineModel(std::shared_ptr<LoadedEngine> engine) : context_(std::move(engine)) {}

  PlanLimits limits_;
  RunContext context_;
  // Of the step at hand, kept for the next one.
  std::vector<std::int64_t> ids_;
  std::vector<std::int64_t> positions_;
  std::vector<std::int64_t> rows_;
  std::vector<SequenceRows> sequences_;
  TensorView made_;                // logits, where the engine is
  std::vector<std::byte> copied_;  // some of them from a device
};

}  // namespace accord::engine
