// The public handles: every method forwards to the object that the handle holds.
#include "accord/engine.hpp"

#include <nlohmann/json.hpp>

#include "engine/report/engine_report.hpp"
#include "engine/report/observe.hpp"
#include "engine/report/step_trace.hpp"
#include "engine/runtime/loaded_engine.hpp"
#include "engine/runtime/run_context.hpp"

namespace accord {

EngineContext::EngineContext(std::shared_ptr<engine::RunContext> context) : context_(std::move(context)) {}

Result<std::vector<TensorView>> EngineContext::run(std::span<const TensorView> inputs) { return context_->run(inputs); }

Result<std::vector<TensorView>> EngineContext::run(std::span<const TensorView> inputs,
                                                   std::span<const SequenceRows> sequences) {
  return context_->run(inputs, sequences);
}

void EngineContext::set_stream(Stream stream) { context_->set_stream(stream); }
Status EngineContext::run_observed(std::span<const TensorView> inputs, const SeeValue& see) {
  return engine::run_observed(*context_, inputs, see);
}

Status EngineContext::create_cache(const KeyValueCacheOptions& options) { return context_->create_cache(options); }
Status EngineContext::copy_block(std::int32_t from, std::int32_t to) { return context_->copy_block(from, to); }
std::size_t EngineContext::cache_bytes() const { return context_->cache_bytes(); }

void EngineContext::set_profiling(Profiling profiling) { context_->set_profiling(profiling); }

std::vector<OpTime> EngineContext::profile() const { return context_->profile(); }

Result<std::string> EngineContext::trace() { return engine::gather_trace(*context_); }

std::size_t EngineContext::arena_bytes() const { return context_->arena_bytes(); }

Engine::Engine(std::shared_ptr<engine::LoadedEngine> engine) : engine_(std::move(engine)) {}

Result<Engine> Engine::load(const std::string& path, const std::map<std::string, GroupPlace>& groups,
                            const LoadOptions& options) {
  ACCORD_ASSIGN_OR_RETURN(auto engine, engine::LoadedEngine::load(path, groups, options));
  return Engine(std::move(engine));
}

Result<Engine> Engine::assemble(const EngineParts& parts, const std::map<std::string, GroupPlace>& groups,
                                const LoadOptions& options) {
  ACCORD_ASSIGN_OR_RETURN(auto engine, engine::LoadedEngine::assemble(parts, groups, options));
  return Engine(std::move(engine));
}

Result<Engine> Engine::load_and_bind(const std::string& path, const std::map<std::string, Communicator>& groups,
                                     const LoadOptions& options) {
  ACCORD_ASSIGN_OR_RETURN(auto engine, engine::LoadedEngine::load_and_bind(path, groups, options));
  return Engine(std::move(engine));
}

Status Engine::bind(const std::map<std::string, Communicator>& groups) { return engine_->bind(groups); }

Status Engine::unbind() { return engine_->unbind(); }

Result<EngineContext> Engine::create_context() {
  if (engine_->groups().state() == EngineState::kClosed)
    return Status(StatusCode::kWrongState, "the engine was closed");
  auto context = std::make_shared<engine::RunContext>(engine_);
  ACCORD_RETURN_IF_ERROR(context->reserve_arena(engine_->reserved_arena_bytes()));
  return EngineContext(std::move(context));
}

Result<std::string> Engine::report(const std::map<std::string, std::int64_t>& sizes) const {
  ACCORD_ASSIGN_OR_RETURN(const engine::SymbolValues symbols, engine::chosen_sizes(engine_->graph(), sizes));
  ACCORD_ASSIGN_OR_RETURN(const nlohmann::ordered_json report, engine::report_of(*engine_, symbols));
  return report.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

Status Engine::load_weights(const std::string& path) { return engine_->load_weights(path); }

const std::string& Engine::path() const { return engine_->model().path; }

EngineState Engine::state() const { return engine_->groups().state(); }
const LoadReport& Engine::load_report() const { return engine_->report(); }
const std::vector<TensorInfo>& Engine::inputs() const { return engine_->model().inputs; }
const std::vector<TensorInfo>& Engine::outputs() const { return engine_->model().outputs; }
const std::map<std::string, GroupPlace>& Engine::groups() const { return engine_->groups().places(); }
void Engine::close() { engine_->close(); }

}  // namespace accord
