// A run checks the inputs, finds the program for their shapes (or prepares it, evicting the least recently used one),
// and has the memory of the engine's device set the addresses of inputs and arena and run one step after the other.
// The arena only grows, so a shape that has run before always fits.
#include "engine/runtime/run_context.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "base/busy_guard.hpp"
#include "base/clock.hpp"
#include "engine/runtime/agreement.hpp"
#include "engine/runtime/inputs.hpp"

namespace accord::engine {
namespace {

std::int64_t nanoseconds_now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch()).count();
}

/// The engine is Running while this object lives.
class Running {
 public:
  explicit Running(LoadedEngine& engine) : engine_(engine) {}
  ~Running() { engine_.groups().end_run(); }
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;

 private:
  LoadedEngine& engine_;
};

Status check_entered(const BusyGuard& guard) {
  if (guard.entered()) return Status();
  return Status(StatusCode::kWrongState, "another thread is using this context; create one context for each thread");
}

}  // namespace

RunContext::RunContext(std::shared_ptr<LoadedEngine> engine) : engine_(std::move(engine)), caches_(*engine_) {
  programs_.weights = engine_->weights().newest();
}

RunContext::~RunContext() {
  engine_->budget().release({kArenas, reserved_arena_});
  engine_->budget().release({kTokenChoices, reserved_sampling_});
}

Status RunContext::between_runs(const std::function<Status()>& body) {
  const BusyGuard guard(busy_);
  ACCORD_RETURN_IF_ERROR(check_entered(guard));
  return body();
}

bool RunContext::use_newest_weights() {
  if (programs_.weights.number == engine_->weights().newest_number()) return false;
  programs_.weights = engine_->weights().newest();
  programs_.recent.clear();
  return true;
}

Status RunContext::reserve_arena(std::size_t bytes) {
  if (bytes <= reserved_arena_) return Status();
  ACCORD_RETURN_IF_ERROR(engine_->budget().reserve({kArenas, bytes - reserved_arena_}));
  reserved_arena_ = bytes;
  return Status();
}

Result<std::vector<TensorView>> RunContext::run(std::span<const TensorView> inputs,
                                                std::optional<std::span<const SequenceRows>> sequences) {
  const BusyGuard guard(busy_);
  ACCORD_RETURN_IF_ERROR(check_entered(guard));
  ACCORD_RETURN_IF_ERROR(engine_->groups().begin_run());
  const Running running(*engine_);
  if (const Status status = check_memory(engine_->graph(), inputs, engine_->device()); !status.ok()) {
    // The device of an input concerns this rank alone.
    if (engine_->device().type != DeviceType::kCpu) abort_peers(status);
    return status;
  }
  if (!programs_.pinned) static_cast<void>(use_newest_weights());
  Result<std::vector<TensorView>> outputs = engine_->model().batch_split ? run_part(inputs)
                                            : engine_->model().context   ? run_context_part(inputs, sequences)
                                                                         : run_bound(inputs, sequences);
  if (!outputs.ok()) release_peers(outputs.status());
  end_started();
  return outputs;
}

// A failed run may leave sums under way that use the arena.
void RunContext::end_started() {
  for (StartedSum& sum : started_) static_cast<void>(sum.work.wait());
  started_.clear();
}

Status RunContext::run_annotated(const Status& ready, std::span<const TensorView> inputs, const AfterNode& after) {
  const BusyGuard guard(busy_);
  ACCORD_RETURN_IF_ERROR(check_entered(guard));
  ACCORD_RETURN_IF_ERROR(engine_->groups().begin_run());
  const Running running(*engine_);
  // This program's memory is freed after the run, so every shape must be synchronized again.
  programs_.synchronized.clear();
  AnnotatedProgram annotated;
  // The callers are in no hurry, so a rank that cannot run, for whatever reason, tells the others before they wait
  // for it.
  ACCORD_RETURN_IF_ERROR(
      agree(engine_->groups().peers(), {ready.ok() ? prepare_annotated(inputs, annotated) : ready, ""}));
  Status status = end(run_annotated_steps(annotated, after));
  if (!status.ok()) release_peers(status);
  return status;
}

Status RunContext::prepare_annotated(std::span<const TensorView> inputs, AnnotatedProgram& annotated) {
  ACCORD_RETURN_IF_ERROR(check_memory(engine_->graph(), inputs, engine_->device()));
  if (engine_->model().context)
    return Status(StatusCode::kUnsupported,
                  fmt::format("ranks of group \"{}\" compute different rows, so their values cannot be observed; load "
                              "the package without it",
                              kContextGroup));
  ACCORD_RETURN_IF_ERROR(begin());
  if (!programs_.pinned) static_cast<void>(use_newest_weights());
  ACCORD_ASSIGN_OR_RETURN(const std::vector<std::int64_t> values, match_inputs(engine_->graph(), inputs));
  const SymbolValues symbols = symbol_values(engine_->graph(), values);
  ACCORD_ASSIGN_OR_RETURN(annotated.program,
                          engine_->prepare(symbols, *programs_.weights.parameters, &annotated.notes));
  return place(annotated.program, inputs, std::nullopt);
}

Status RunContext::run_annotated_steps(AnnotatedProgram& annotated, const AfterNode& after) {
  const auto run_nodes = [&](const Execution& execution) {
    const std::vector<ProgramStep>& steps = annotated.program.steps;
    auto step = steps.begin();
    const std::vector<Node>& nodes = engine_->graph().nodes;
    for (std::size_t i = 0; i < nodes.size(); ++i) {
      for (; step != steps.end() && step->node == &nodes[i]; ++step) {
        ACCORD_RETURN_IF_ERROR(step->run(execution));
      }
      ACCORD_RETURN_IF_ERROR(after(i, annotated.notes, execution));
    }
    return Status();
  };
  return memory_->run_steps(execution_of(annotated.program), run_nodes);
}

// The ranks get equal inputs and find the same faults in them. A failure that may concern this rank alone would leave
// the others waiting for it in a collective.
void RunContext::release_peers(const Status& failure) {
  if (failure.code() == StatusCode::kResourceExhausted || failure.code() == StatusCode::kInternal) abort_peers(failure);
}

void RunContext::abort_peers(const Status& failure) {
  for (std::optional<Communicator> communicator : engine_->groups().communicators()) {
    communicator->abort("a run of the engine failed: " + failure.message());
  }
  if (memory_) memory_->abort("a run of the engine failed: " + failure.message());
}

Status RunContext::create_cache(const KeyValueCacheOptions& options) {
  const BusyGuard guard(busy_);
  ACCORD_RETURN_IF_ERROR(check_entered(guard));
  ACCORD_ASSIGN_OR_RETURN(const CachedParts parts, cached_parts(engine_->graph()));
  if (parts.empty()) return Status(StatusCode::kInvalidArgument, "this engine has no cached attention");
  ACCORD_RETURN_IF_ERROR(begin());
  programs_.synchronized.clear();
  return caches_.create(*memory_, parts, options);
}

Status RunContext::copy_block(std::int32_t from, std::int32_t to) {
  const BusyGuard guard(busy_);
  ACCORD_RETURN_IF_ERROR(check_entered(guard));
  return caches_.copy_block(from, to);
}

// Runs this rank's part of the batch, then gathers the outputs of all ranks.
Result<std::vector<TensorView>> RunContext::run_part(std::span<const TensorView> inputs) {
  const BatchSplit& split = *engine_->model().batch_split;
  ACCORD_ASSIGN_OR_RETURN(const std::int64_t rows, batch_rows(split, engine_->graph(), inputs));
  ACCORD_ASSIGN_OR_RETURN(const BatchPart part, batch_part(split, rows, split.place.rank));
  ACCORD_ASSIGN_OR_RETURN(const BatchPart largest, batch_part(split, rows, 0));
  largest_batch_part_ = largest.count;
  ACCORD_ASSIGN_OR_RETURN(const std::vector<TensorView> outputs,
                          run_bound(inputs_of_part(split, part, inputs), std::nullopt));
  return batch_outputs_.gather(split, rows, outputs, engine_->groups().communicator(kBatchGroup).value());
}

// Runs this rank's rows. Rows whose logits are wanted run on all ranks, so each of them has the outputs.
Result<std::vector<TensorView>> RunContext::run_context_part(std::span<const TensorView> inputs,
                                                             std::optional<std::span<const SequenceRows>> sequences) {
  ACCORD_RETURN_IF_ERROR(match_inputs(engine_->graph(), inputs).status());
  ACCORD_RETURN_IF_ERROR(begin());
  ACCORD_RETURN_IF_ERROR(caches_.set_batch(*memory_, inputs[0].shape[0], sequences));
  ACCORD_ASSIGN_OR_RETURN(
      const auto part, context_inputs_.cut(*engine_->model().context, inputs, caches_.batch(), caches_.block_tokens()));
  return run_bound(part, sequences);
}

Result<std::vector<TensorView>> RunContext::run_bound(std::span<const TensorView> inputs,
                                                      std::optional<std::span<const SequenceRows>> sequences) {
  ACCORD_RETURN_IF_ERROR(begin());
  const Result<CachedProgram*> known = find_program(inputs);
  if (!known.ok() && memory_->shows_faults_at_end() && engine_->groups().divides_runs() &&
      known.status().code() != StatusCode::kInvalidArgument)
    abort_peers(known.status());  // other stages have other ops
  ACCORD_ASSIGN_OR_RETURN(CachedProgram* const found, known);
  Program& program = found->program;
  ACCORD_RETURN_IF_ERROR(place(program, inputs, sequences));
  ACCORD_RETURN_IF_ERROR(synchronize_before_first_run());
  const Execution execution = execution_of(program);
  const Profiling profiling = times_.profiling();
  const Status ran = profiling == Profiling::kOff ? memory_->run(program, execution, found->state.get())
                                                  : run_steps_timed(program, execution, profiling);
  ACCORD_RETURN_IF_ERROR(end(ran));
  return memory_->outputs(program, engine_->settings().copies_outputs && !keeps_outputs_);
}

Status RunContext::begin() {
  if (!memory_) {
    ACCORD_ASSIGN_OR_RETURN(memory_, engine_->target().create_run_memory(engine_->settings().threads));
  }
  if (std::exchange(bindings_, engine_->groups().bindings()) != engine_->groups().bindings())
    memory_->forget_communicators();
  return Status();
}

// Places memory, inputs and the tables of the batch.
Status RunContext::place(Program& program, std::span<const TensorView> inputs,
                         std::optional<std::span<const SequenceRows>> sequences) {
  ACCORD_RETURN_IF_ERROR(reserve_arena(program.arena_bytes));
  if (!engine_->model().context) {
    ACCORD_RETURN_IF_ERROR(caches_.set_batch(*memory_, program.batch_rows, sequences));
  }
  const bool leaves_outputs = !engine_->settings().copies_outputs && !keeps_outputs_;
  const bool reads_inputs = std::any_of(inputs.begin(), inputs.end(), [](const TensorView& input) {
    return input.buffer.device.type != DeviceType::kCpu;
  });
  return memory_->place(program, inputs, leaves_outputs || reads_inputs ? std::optional(caller_stream_) : std::nullopt);
}

// A shape that runs for the first time may free memory. A device then waits until all its kernels have ended,
// including those of other ranks in this process, which may wait for this rank's kernels. So nothing is launched
// before all ranks have their memory.
Status RunContext::synchronize_before_first_run() {
  if (!memory_->frees_memory_after_kernels() || programs_.synchronized.find(programs_.key) != nullptr) return Status();
  for (auto& [group, communicator] : engine_->groups().peers()) {
    const Status met = communicator.barrier();
    if (!met.ok()) return met.with_context(fmt::format("before the first run of a shape, group \"{}\"", group));
  }
  programs_.synchronized.add(programs_.key, {});
  return Status();
}

// A fault that one stage or replica finds, such as an id outside its table, is not seen by the others. Where faults
// show at the end of a run, the stage has already sent what the others wait for, and all of them agree on the outcome.
// Any other failure belongs to this rank alone and ends the run of the others, which are waiting.
Status RunContext::end(const Status& ran) {
  if (!memory_->shows_faults_at_end()) {
    if (!ran.ok() && engine_->groups().divides_runs()) abort_peers(ran);
    return ran;
  }
  if (!ran.ok() && ran.code() != StatusCode::kInvalidArgument) {
    abort_peers(ran);
    return ran;
  }
  if (!engine_->groups().divides_runs()) return ran;
  std::map<std::string, Communicator> stages = engine_->groups().peers();
  std::erase_if(stages, [](const auto& group) { return group.first != kStageGroup; });
  return agree(stages, {.status = ran, .digest = "", .failure_phrase = "failed in its run"});
}

Result<RunContext::CachedProgram*> RunContext::find_program(std::span<const TensorView> inputs) {
  programs_.key.clear();
  for (const TensorView& input : inputs)
    programs_.key.insert(programs_.key.end(), input.shape.begin(), input.shape.end());
  if (CachedProgram* const found = programs_.recent.find(programs_.key)) return found;
  ACCORD_ASSIGN_OR_RETURN(const std::vector<std::int64_t> values, match_inputs(engine_->graph(), inputs));
  ACCORD_ASSIGN_OR_RETURN(Program program,
                          engine_->prepare(symbol_values(engine_->graph(), values), *programs_.weights.parameters));
  return &programs_.recent.add(programs_.key, {std::move(program), memory_->create_state()});
}

Execution RunContext::execution_of(Program& program) {
  return {.bases = program.bases,
          .communicators = engine_->groups().communicators(),
          .batch = caches_.batch(),
          .context = engine_->model().context ? &context_inputs_.rows() : nullptr,
          .started = &started_,
          .largest_batch_part = largest_batch_part_};
}

Status RunContext::run_steps_timed(Program& program, const Execution& execution, Profiling profiling) {
  const std::int64_t first = nanoseconds_now();
  std::int64_t begin = first;
  ACCORD_RETURN_IF_ERROR(memory_->run_each(program, execution, [&](const ProgramStep& step) {
    times_.add_step(profiling, {step.node, begin, nanoseconds_now()});
    begin = nanoseconds_now();
    return Status();
  }));
  times_.add_run(profiling, first, begin);
  return Status();
}

Status RunContext::copy_output(const Buffer& output, void* to) {
  return memory_->copy_to_cpu(to, output.data, output.bytes());
}

Status RunContext::reserve_sampling(std::size_t choices, std::int64_t width) {
  ACCORD_RETURN_IF_ERROR(begin());
  const std::size_t bytes = memory_->reserve_choices(choices, width);
  ACCORD_RETURN_IF_ERROR(engine_->budget().reserve({kTokenChoices, bytes}));
  reserved_sampling_ += bytes;
  return Status();
}

Status RunContext::choose_tokens(const TensorView& logits, std::span<const TokenChoice> choices,
                                 std::span<TokenId> tokens) {
  return memory_->choose_tokens(logits, choices, tokens);
}

}  // namespace accord::engine
