// A run: check the inputs, find the program for their shapes (or prepare it, and forget the one that was not used for the
// longest), set the addresses of inputs and arena, and call one step after the other. The arena only grows, so that a shape
// met before always fits. One that was outgrown keeps its addresses, not its pages, until the context ends: arrays that
// Python made of earlier outputs lie there.
#include "engine/runtime/run_context.hpp"

#include <algorithm>
#include <utility>

#include "base/clock.hpp"
#include "engine/runtime/inputs.hpp"

namespace accord::engine {
namespace {

/// The engine is Running while this lives.
class Running {
 public:
  explicit Running(LoadedEngine& engine) : engine_(engine) {}
  ~Running() { engine_.end_run(); }
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;

 private:
  LoadedEngine& engine_;
};

class Busy {
 public:
  explicit Busy(std::atomic<bool>& flag) : flag_(flag), mine_(!flag.exchange(true, std::memory_order_acquire)) {}
  ~Busy() {
    if (mine_) flag_.store(false, std::memory_order_release);
  }
  Busy(const Busy&) = delete;
  Busy& operator=(const Busy&) = delete;
  bool mine() const { return mine_; }

 private:
  std::atomic<bool>& flag_;
  bool mine_;
};

}  // namespace

RunContext::RunContext(std::shared_ptr<LoadedEngine> engine) : engine_(std::move(engine)), pool_(engine_->threads()) {}

Result<std::vector<TensorView>> RunContext::run(std::span<const TensorView> inputs) {
  const Busy busy(busy_);
  if (!busy.mine()) {
    return Status(StatusCode::kWrongState, "another thread runs this context; make one context for each thread");
  }
  ACCORD_RETURN_IF_ERROR(engine_->begin_run());
  const Running running(*engine_);
  ACCORD_RETURN_IF_ERROR(check_memory(engine_->graph(), inputs));
  Result<std::vector<TensorView>> outputs = run_bound(inputs);
  if (!outputs.ok()) release_peers(outputs.status());
  return outputs;
}

// The ranks are given equal inputs and find alike what is wrong with them. What this rank may be alone with would leave the
// others waiting for it in a collective.
void RunContext::release_peers(const Status& failure) {
  if (failure.code() != StatusCode::kResourceExhausted && failure.code() != StatusCode::kInternal) return;
  for (std::optional<Communicator> communicator : engine_->communicators()) {
    communicator->abort("a run of the engine failed: " + failure.message());
  }
}

Result<std::vector<TensorView>> RunContext::run_bound(std::span<const TensorView> inputs) {
  ACCORD_ASSIGN_OR_RETURN(Program * program, find_program(inputs));
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    program->bases[static_cast<std::size_t>(program->inputs[i])] = static_cast<std::byte*>(inputs[i].buffer.data);
  }
  ACCORD_RETURN_IF_ERROR(place_arena(*program));
  ACCORD_RETURN_IF_ERROR(run_steps(*program));
  std::vector<TensorView> outputs;
  outputs.reserve(program->outputs.size());
  for (const Tensor& output : program->outputs) {
    std::byte* data = program->bases[static_cast<std::size_t>(output.storage)] + output.offset;
    outputs.push_back({{data, static_cast<std::size_t>(output.count()), output.dtype, {}}, output.sizes()});
  }
  return outputs;
}

Result<Program*> RunContext::find_program(std::span<const TensorView> inputs) {
  key_.clear();
  for (const TensorView& input : inputs) key_.insert(key_.end(), input.shape.begin(), input.shape.end());
  const auto found =
      std::find_if(programs_.begin(), programs_.end(), [&](const CachedProgram& cached) { return cached.key == key_; });
  if (found != programs_.end()) {
    programs_.splice(programs_.begin(), programs_, found);
    return &programs_.front().program;
  }
  ACCORD_ASSIGN_OR_RETURN(const std::vector<std::int64_t> values, match_inputs(engine_->graph(), inputs));
  ACCORD_ASSIGN_OR_RETURN(Program program, engine_->prepare(symbol_values(engine_->graph(), values)));
  if (programs_.size() == kMostPrograms) programs_.pop_back();
  programs_.push_front({key_, std::move(program)});
  return &programs_.front().program;
}

Status RunContext::place_arena(Program& program) {
  if (program.arena_bytes > arena_.size()) {
    ACCORD_ASSIGN_OR_RETURN(Region larger, Region::allocate(program.arena_bytes, "the engine's arena"));
    arena_.clear();
    outgrown_.push_back(std::exchange(arena_, std::move(larger)));
  }
  for (const Program::ArenaPiece& piece : program.arena) {
    program.bases[static_cast<std::size_t>(piece.storage)] = arena_.data() + piece.offset;
  }
  return Status();
}

Status RunContext::run_steps(Program& program) {
  const Execution execution{program.bases, pool_, engine_->communicators()};
  if (profiling_ == Profiling::kOn) return run_steps_timed(program, execution);
  for (const ProgramStep& step : program.steps) ACCORD_RETURN_IF_ERROR(step.run(execution));
  return Status();
}

Status RunContext::run_steps_timed(Program& program, const Execution& execution) {
  for (const ProgramStep& step : program.steps) {
    const auto begin = Clock::now();
    ACCORD_RETURN_IF_ERROR(step.run(execution));
    TimeOfOp& time = times_[step.node == nullptr ? "output copy" : step.node->op];
    ++time.calls;
    time.seconds += std::chrono::duration<double>(Clock::now() - begin).count();
  }
  return Status();
}

std::vector<OpTime> RunContext::profile() const {
  std::vector<OpTime> times;
  for (const auto& [op, time] : times_) times.push_back({op, time.calls, time.seconds});
  std::sort(times.begin(), times.end(), [](const OpTime& a, const OpTime& b) { return a.seconds > b.seconds; });
  return times;
}

}  // namespace accord::engine
