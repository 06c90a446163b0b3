#include "engine/serving/engine_model.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/rounding.hpp"
#include "engine/program/batch.hpp"
#include "kernels/elementwise/elementwise.hpp"

namespace accord::engine {
namespace {

// Tokens of a block of the cache. A state is some megabytes per layer, so that a copy for 16 tokens would be too much.
constexpr std::int32_t kBlockTokens = 16, kBlockTokensWithStates = 256;

Result<PlanLimits> limits_of(const LoadedEngine& engine, const LanguageModelOptions& options, std::int32_t max_source) {
  const std::optional<LanguageModelEntry>& model = engine.model().language_model;
  const std::vector<TensorInfo>& outputs = engine.model().outputs;
  const std::string vocabulary = outputs.size() == 1 && outputs[0].shape.size() == 2 ? outputs[0].shape[1] : "";
  const bool whole = !vocabulary.empty() &&
                     std::all_of(vocabulary.begin(), vocabulary.end(), [](char c) { return c >= '0' && c <= '9'; });
  const std::size_t inputs = model ? 3U + (model->source_token ? 2 : 0) + (model->adapters.empty() ? 0 : 1) : 0;
  if (!model || !whole || engine.model().inputs.size() != inputs) {
    return Status(StatusCode::kUnsupported,
                  "this package is not a language model: export a model of transformers without example inputs");
  }
  PlanLimits limits;
  limits.max_context = static_cast<std::int32_t>(model->max_context);
  limits.block_tokens = options.block_tokens;
  if (limits.block_tokens == 0) {
    ACCORD_ASSIGN_OR_RETURN(const std::vector<CachedState> states, cached_states(engine.graph()));
    limits.block_tokens = states.empty() ? kBlockTokens : std::min(kBlockTokensWithStates, limits.max_context);
    limits.block_tokens = round_up(limits.block_tokens, kBlockTokens);
    if (engine.model().context)
      limits.block_tokens = static_cast<std::int32_t>(engine.model().context->least_block_tokens());
  }
  limits.vocabulary = static_cast<std::int32_t>(std::stoll(vocabulary));
  limits.max_sequences = options.max_sequences;
  limits.max_rows = options.max_rows;
  limits.max_source = max_source;
  limits.source_token = model->source_token;
  limits.adapters = model->adapters;
  const std::int64_t cached = limits.source_token ? 0 : max_source;
  const std::int64_t longest = limits.max_context + round_up(cached, std::int64_t{kBlockTokens});
  const std::int64_t tokens = options.cache_tokens == 0 ? longest : options.cache_tokens;
  if (tokens < 1 || limits.block_tokens < 1) {
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("a cache cannot have {} tokens in blocks of {}", tokens, limits.block_tokens));
  }
  limits.blocks = static_cast<std::int32_t>(quotient_up(tokens, limits.block_tokens));
  return limits;
}

// Returns the arena's size for the largest step that the scheduler plans.
Result<std::size_t> arena_bytes(const LoadedEngine& engine, const PlanLimits& limits) {
  SymbolValues symbols;
  for (const Symbol& symbol : engine.graph().symbols) {
    const std::int64_t wanted = symbol.name == "rows" ? limits.max_sequences : limits.max_rows;
    symbols[symbol.name] = std::clamp(wanted, symbol.min, symbol.max);
  }
  ACCORD_ASSIGN_OR_RETURN(const Program program, engine.prepare(symbols));
  return program.arena_bytes;
}

// Sources are stored as the sequences of the same layers are, in blocks of the same cache.
Status check_layers(const LoadedEngine& engine) {
  ACCORD_ASSIGN_OR_RETURN(const std::vector<CachedLayer> layers, cached_layers(engine.graph()));
  ACCORD_ASSIGN_OR_RETURN(const std::vector<CachedLayer> of_sources, cached_layers(engine.encoder()->graph()));
  for (const CachedLayer& source : of_sources) {
    const auto own = std::ranges::find(layers, source.layer, &CachedLayer::layer);
    const bool fits = own != layers.end() && own->kv_heads == source.kv_heads && own->head_dim == source.head_dim &&
                      own->value_dim == source.value_dim && own->value_place == source.value_place;
    if (fits) continue;
    return Status(
        StatusCode::kUnsupported,
        fmt::format("cross attention of layer {} has {} key heads of {} on this rank, which differ from those "
                    "of the layer's attention to earlier tokens: a cache stores both alike",
                    source.layer, source.kv_heads, source.head_dim));
  }
  return Status();
}

// Fails with kCorrupt unless the decoder takes the rows that the encoder returns.
Result<InsertedRows> inserted_rows(const LoadedEngine& engine) {
  const Graph& decoder = engine.graph();
  const Graph& encoder = engine.encoder()->graph();
  const Value& wanted = decoder.values[static_cast<std::size_t>(decoder.inputs[3])];
  const Value& given = encoder.values[static_cast<std::size_t>(encoder.outputs[0])];
  const bool fits = wanted.dtype == given.dtype && wanted.shape.size() == 2 && wanted.shape[1] == given.shape[1];
  if (!fits || !given.shape[1].is_constant())
    return Status(StatusCode::kCorrupt,
                  fmt::format("the encoder returns rows {} {}, but the model takes {} {}", to_string(given.dtype),
                              shape_text(given.shape), to_string(wanted.dtype), shape_text(wanted.shape)));
  return InsertedRows(*engine.model().language_model->source_token, given.dtype, given.shape[1].constant());
}

TensorView view_of(std::vector<std::int64_t>& numbers) {
  return {{numbers.data(), numbers.size(), DType::kInt64, {}}, {static_cast<std::int64_t>(numbers.size())}};
}

}  // namespace

Result<std::shared_ptr<EngineModel>> EngineModel::create(std::shared_ptr<LoadedEngine> engine,
                                                         const LanguageModelOptions& options) {
  std::optional<SourceInputs> sources;
  const auto& entry = engine->model().language_model;
  const bool inserts_rows = entry && entry->source_token;
  if (engine->encoder()) {
    ACCORD_ASSIGN_OR_RETURN(sources, SourceInputs::create(engine->encoder(), !inserts_rows));
    if (!inserts_rows) ACCORD_RETURN_IF_ERROR(check_layers(*engine));
  }
  ACCORD_ASSIGN_OR_RETURN(const PlanLimits limits, limits_of(*engine, options, sources ? sources->max_rows() : 0));
  std::shared_ptr<EngineModel> model(new EngineModel(std::move(engine)));
  model->limits_ = limits;
  model->sources_ = std::move(sources);
  model->context_.pin_weights();
  model->context_.keep_outputs_on_device();  // few ranks need the logits
  if (model->context_.engine().budget().limit() != 0) {
    ACCORD_ASSIGN_OR_RETURN(const std::size_t arena, arena_bytes(model->context_.engine(), limits));
    ACCORD_RETURN_IF_ERROR(model->context_.reserve_arena(arena));
  }
  ACCORD_RETURN_IF_ERROR(
      model->context_.reserve_sampling(static_cast<std::size_t>(limits.max_sequences), limits.vocabulary));
  ACCORD_RETURN_IF_ERROR(model->context_.create_cache({limits.blocks, limits.block_tokens, options.cache_dtype}));
  if (const auto& encoder = model->context_.engine().encoder()) {
    model->encoder_ = std::make_unique<RunContext>(encoder);
    model->encoder_->pin_weights();
    if (inserts_rows) {
      ACCORD_ASSIGN_OR_RETURN(model->inserted_, inserted_rows(model->context_.engine()));
    } else {
      model->encoder_->share_cache(model->context_);
    }
    ACCORD_RETURN_IF_ERROR(model->encoder_->reserve_arena(encoder->reserved_arena_bytes()));
  }
  return model;
}

Result<std::int32_t> EngineModel::source_rows(std::span<const SourceTensor> source) const {
  return sources_ ? sources_->rows(source) : StepModel::source_rows(source);
}

bool EngineModel::use_newest_weights() {
  const bool changed = context_.use_newest_weights();
  return (encoder_ != nullptr && encoder_->use_newest_weights()) || changed;
}

Status EngineModel::run_encoder(const StepPlan& plan, const NewSource& source) {
  const PlannedSequence& sequence = plan.sequences[static_cast<std::size_t>(source.sequence)];
  if (inserted_) {
    const Result<std::vector<TensorView>> made = encoder_->run(views_of(*source.tensors));
    if (!made.ok()) return made.status().with_context("the encoder");
    inserted_->keep(sequence.source_slot, made->front());
    return Status();
  }
  const SequenceRows rows{sequence.source_rows, 0, plan.source_table(sequence)};
  return encoder_->run(views_of(*source.tensors), std::span(&rows, 1)).status().with_context("the encoder");
}

Status EngineModel::run(const StepPlan& plan) {
  for (const BlockCopy& copy : plan.copies) ACCORD_RETURN_IF_ERROR(context_.copy_block(copy.from, copy.to));
  for (const NewSource& source : plan.sources) ACCORD_RETURN_IF_ERROR(run_encoder(plan, source));
  ids_.assign(plan.tokens.begin(), plan.tokens.end());
  positions_.assign(plan.positions.begin(), plan.positions.end());
  rows_.assign(plan.logit_rows.begin(), plan.logit_rows.end());
  // A prefill step may need no logits at all, but a graph computes at least one row of them.
  if (rows_.empty()) rows_.push_back(0);
  sequences_.clear();
  adapters_.clear();
  for (const PlannedSequence& sequence : plan.sequences) {
    adapters_.insert(adapters_.end(), static_cast<std::size_t>(sequence.rows), sequence.adapter);
    const std::int32_t cached = inserted_ ? 0 : sequence.source_rows;
    sequences_.push_back({sequence.rows, sequence.context, plan.table(sequence), cached, plan.source_table(sequence)});
  }
  std::vector<TensorView> inputs = {view_of(ids_), view_of(positions_), view_of(rows_)};
  if (inserted_) {
    ACCORD_RETURN_IF_ERROR(inserted_->gather(plan));
    inputs.push_back(inserted_->rows());
    inputs.push_back(inserted_->indices());
  }
  if (!limits_.adapters.empty()) inputs.push_back(view_of(adapters_));
  ACCORD_ASSIGN_OR_RETURN(const std::vector<TensorView> outputs, context_.run(inputs, sequences_));
  logits_ = outputs[0];
  const std::size_t wanted = rows_.size() * static_cast<std::size_t>(limits_.vocabulary);
  if (logits_.buffer.count == wanted) return Status();
  return Status(StatusCode::kInternal,
                fmt::format("the model returned {} logits, expected {}", logits_.buffer.count, wanted));
}

Status EngineModel::choose(std::span<const TokenChoice> choices, std::span<TokenId> tokens) {
  if (logits_.buffer.device == Device()) return StepModel::choose(choices, tokens);
  return context_.choose_tokens(logits_, choices, tokens);
}

Status EngineModel::read_logits(std::size_t first, std::span<float> logits) {
  const auto vocabulary = static_cast<std::size_t>(limits_.vocabulary);
  Buffer part = logits_.buffer;
  part.data = static_cast<std::byte*>(part.data) + first * vocabulary * size_of(part.dtype);
  part.count = logits.size();
  if (part.device != Device()) {
    host_logits_.resize(part.bytes());
    ACCORD_RETURN_IF_ERROR(context_.copy_output(part, host_logits_.data()));
    part.data = host_logits_.data();
  }
  const Sizes sizes = {static_cast<std::int64_t>(logits.size() / vocabulary), limits_.vocabulary};
  const auto layout = kernels::contiguous_layout(sizes);
  return kernels::convert({part.data, part.dtype, layout}, {logits.data(), DType::kFloat32, layout});
}

}  // namespace accord::engine
