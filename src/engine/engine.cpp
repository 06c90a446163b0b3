// The public handles: each call goes to what they hold.
#include "accord/engine.hpp"

#include "engine/runtime/loaded_engine.hpp"
#include "engine/runtime/run_context.hpp"

namespace accord {

EngineContext::EngineContext(std::shared_ptr<engine::RunContext> context) : context_(std::move(context)) {}

Result<std::vector<TensorView>> EngineContext::run(std::span<const TensorView> inputs) { return context_->run(inputs); }

void EngineContext::set_profiling(Profiling profiling) { context_->set_profiling(profiling); }

std::vector<OpTime> EngineContext::profile() const { return context_->profile(); }

std::size_t EngineContext::arena_bytes() const { return context_->arena_bytes(); }

Engine::Engine(std::shared_ptr<engine::LoadedEngine> engine) : engine_(std::move(engine)) {}

Result<Engine> Engine::load(const std::string& path, const std::map<std::string, GroupPlace>& groups,
                            const LoadOptions& options) {
  ACCORD_ASSIGN_OR_RETURN(auto engine, engine::LoadedEngine::load(path, groups, options));
  return Engine(std::move(engine));
}

Result<Engine> Engine::load_and_bind(const std::string& path, const std::map<std::string, Communicator>& groups,
                                     const LoadOptions& options) {
  ACCORD_ASSIGN_OR_RETURN(auto engine, engine::LoadedEngine::load_and_bind(path, groups, options));
  return Engine(std::move(engine));
}

Status Engine::bind(const std::map<std::string, Communicator>& groups) { return engine_->bind(groups); }

Result<EngineContext> Engine::create_context() {
  if (engine_->state() == EngineState::kClosed) return Status(StatusCode::kWrongState, "the engine was closed");
  return EngineContext(std::make_shared<engine::RunContext>(engine_));
}

EngineState Engine::state() const { return engine_->state(); }
const LoadReport& Engine::load_report() const { return engine_->report(); }
const std::vector<TensorInfo>& Engine::inputs() const { return engine_->inputs(); }
const std::vector<TensorInfo>& Engine::outputs() const { return engine_->outputs(); }
const std::map<std::string, GroupPlace>& Engine::groups() const { return engine_->groups(); }
void Engine::close() { engine_->close(); }

}  // namespace accord
