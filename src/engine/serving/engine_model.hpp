#pragma once
// Adapts a loaded language model to Generation.

#include <memory>
#include <optional>
#include <vector>

#include "accord/language_model.hpp"
#include "engine/runtime/loaded_engine.hpp"
#include "engine/runtime/run_context.hpp"
#include "engine/serving/inserted_rows.hpp"
#include "engine/serving/source_inputs.hpp"
#include "engine/serving/step_model.hpp"

namespace accord::engine {

/// The engine takes input_ids, positions and rows and returns logits, as exported by
/// python/accord/exporter/language_model.py. Its encoder, if it has one, runs once for each new source. It stores the
/// source in the engine's cache, or returns rows, which the engine takes as further inputs: source and source_index, as
/// exported by python/accord/exporter/vision_language.py. With adapters (python/accord/adapters), the last input is the
/// adapter of each token.
class EngineModel final : public StepModel {
 public:
  /// Fails with kUnsupported if the engine is not a language model, and with kInvalidArgument or kResourceExhausted
  /// for invalid options.
  static Result<std::shared_ptr<EngineModel>> create(std::shared_ptr<LoadedEngine> engine,
                                                     const LanguageModelOptions& options);

  const PlanLimits& limits() const override { return limits_; }
  Result<std::int32_t> source_rows(std::span<const SourceTensor> source) const override;
  Status run(const StepPlan& plan) override;
  /// Chooses on the device if the engine is on one.
  Status choose(std::span<const TokenChoice> choices, std::span<TokenId> tokens) override;
  Status read_logits(std::size_t first, std::span<float> logits) override;
  bool use_newest_weights() override;

  std::size_t cache_bytes() const { return context_.cache_bytes(); }

 private:
  explicit EngineModel(std::shared_ptr<LoadedEngine> engine) : context_(std::move(engine)) {}
  Status run_encoder(const StepPlan& plan, const NewSource& source);

  PlanLimits limits_;
  RunContext context_;
  std::optional<SourceInputs> sources_;  // of a model with an encoder, like the next member
  std::unique_ptr<RunContext> encoder_;  // stores sources in the cache of context_, unless inserted_ has them
  std::optional<InsertedRows> inserted_;
  // Buffers of the current step; their memory is reused.
  std::vector<std::int64_t> ids_;
  std::vector<std::int64_t> positions_;
  std::vector<std::int64_t> rows_;
  std::vector<std::int64_t> adapters_;  // of each token, if the package has adapters
  std::vector<SequenceRows> sequences_;
  TensorView logits_;                   // logits, where the engine is
  std::vector<std::byte> host_logits_;  // copies of logits from a device
};

}  // namespace accord::engine
