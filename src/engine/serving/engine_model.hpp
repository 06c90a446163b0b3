#pragma once
// Adapts a loaded language model to Generation.

#include <memory>
#include <vector>

#include "accord/language_model.hpp"
#include "engine/runtime/loaded_engine.hpp"
#include "engine/runtime/run_context.hpp"
#include "engine/serving/step_model.hpp"

namespace accord::engine {

/// The engine takes input_ids, positions and rows and returns logits, as exported by
/// python/accord/exporter/language_model.py.
class EngineModel final : public StepModel {
 public:
  /// Fails with kUnsupported if the engine is not a language model, and with kInvalidArgument or kResourceExhausted
  /// for invalid options.
  static Result<std::shared_ptr<EngineModel>> create(std::shared_ptr<LoadedEngine> engine,
                                                     const LanguageModelOptions& options);

  const PlanLimits& limits() const override { return limits_; }
  Status run(const StepPlan& plan) override;
  /// Chooses on the device if the engine is on one.
  Status choose(std::span<const TokenChoice> choices, std::span<TokenId> tokens) override;
  Status read_logits(std::size_t first, std::span<float> logits) override;
  bool use_newest_weights() override { return context_.use_newest_weights(); }

  std::size_t cache_bytes() const { return context_.cache_bytes(); }

 private:
  explicit EngineModel(std::shared_ptr<LoadedEngine> engine) : context_(std::move(engine)) {}

  PlanLimits limits_;
  RunContext context_;
  // Buffers of the current step; their memory is reused.
  std::vector<std::int64_t> ids_;
  std::vector<std::int64_t> positions_;
  std::vector<std::int64_t> rows_;
  std::vector<SequenceRows> sequences_;
  TensorView logits_;                   // logits, where the engine is
  std::vector<std::byte> host_logits_;  // copies of logits from a device
};

}  // namespace accord::engine
