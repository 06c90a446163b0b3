// A run checks the inputs, finds the program for their shapes (or prepares it, evicting the least recently used one),
// and has the memory of the engine's device set the addresses of inputs and arena and run one step after the other.
// The arena only grows, so a shape that has run before always fits.
#include "engine/runtime/run_context.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
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
  ~Running() { engine_.end_run(); }
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

RunContext::RunContext(std::shared_ptr<LoadedEngine> engine)
    : engine_(std::move(engine)), weights_(engine_->newest_weights()) {}

RunContext::~RunContext() {
  engine_->budget().release({kArena, reserved_arena_});
  engine_->budget().release({kSampling, reserved_sampling_});
  engine_->budget().release({kCache, cache_bytes() + (temporary_cache_ ? temporary_cache_->bytes() : 0)});
}

Status RunContext::between_runs(const std::function<Status()>& body) {
  const BusyGuard guard(busy_);
  ACCORD_RETURN_IF_ERROR(check_entered(guard));
  return body();
}

bool RunContext::use_newest_weights() {
  if (weights_.version == engine_->weights_version()) return false;
  weights_ = engine_->newest_weights();
  programs_.clear();
  return true;
}

Status RunContext::reserve_arena(std::size_t bytes) {
  if (bytes <= reserved_arena_) return Status();
  ACCORD_RETURN_IF_ERROR(engine_->budget().reserve({kArena, bytes - reserved_arena_}));
  reserved_arena_ = bytes;
  return Status();
}

Result<std::vector<TensorView>> RunContext::run(std::span<const TensorView> inputs,
                                                std::optional<std::span<const SequenceRows>> sequences) {
  const BusyGuard guard(busy_);
  ACCORD_RETURN_IF_ERROR(check_entered(guard));
  ACCORD_RETURN_IF_ERROR(engine_->begin_run());
  const Running running(*engine_);
  if (const Status status = check_memory(engine_->graph(), inputs, engine_->device()); !status.ok()) {
    // The device of an input concerns this rank alone.
    if (engine_->device().type != DeviceType::kCpu) abort_peers(status);
    return status;
  }
  if (!pinned_) static_cast<void>(use_newest_weights());
  Result<std::vector<TensorView>> outputs = engine_->batch_split() ? run_part(inputs) : run_bound(inputs, sequences);
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
  ACCORD_RETURN_IF_ERROR(engine_->begin_run());
  const Running running(*engine_);
  synchronized_.clear();  // this program's memory is freed after the run, so every shape must be synchronized again
  AnnotatedProgram annotated;
  // The callers are in no hurry, so a rank that cannot run, for whatever reason, tells the others before they wait
  // for it.
  ACCORD_RETURN_IF_ERROR(agree(engine_->peers(), {ready.ok() ? prepare_annotated(inputs, annotated) : ready, ""}));
  const Status status = end(run_annotated_steps(annotated, after));
  if (!status.ok()) release_peers(status);
  return status;
}

Status RunContext::prepare_annotated(std::span<const TensorView> inputs, AnnotatedProgram& annotated) {
  ACCORD_RETURN_IF_ERROR(check_memory(engine_->graph(), inputs, engine_->device()));
  ACCORD_RETURN_IF_ERROR(begin());
  if (!pinned_) static_cast<void>(use_newest_weights());
  ACCORD_ASSIGN_OR_RETURN(const std::vector<std::int64_t> values, match_inputs(engine_->graph(), inputs));
  const SymbolValues symbols = symbol_values(engine_->graph(), values);
  ACCORD_ASSIGN_OR_RETURN(annotated.program, engine_->prepare(symbols, *weights_.parameters, &annotated.notes));
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
  for (std::optional<Communicator> communicator : engine_->communicators()) {
    communicator->abort("a run of the engine failed: " + failure.message());
  }
  if (memory_) memory_->abort("a run of the engine failed: " + failure.message());
}

Status RunContext::create_cache(const KeyValueCacheOptions& options) {
  const BusyGuard guard(busy_);
  ACCORD_RETURN_IF_ERROR(check_entered(guard));
  ACCORD_ASSIGN_OR_RETURN(const std::vector<CachedLayer> layers, cached_layers(engine_->graph()));
  if (layers.empty()) return Status(StatusCode::kInvalidArgument, "this engine has no cached attention");
  ACCORD_RETURN_IF_ERROR(begin());
  engine_->budget().release({kCache, cache_bytes()});
  cache_.reset();
  synchronized_.clear();
  ACCORD_ASSIGN_OR_RETURN(std::unique_ptr<RunCache> made, memory_->create_cache(layers, options));
  const Status fits = engine_->budget().reserve({kCache, made->bytes()});
  if (!fits.ok()) return Status(fits.code(), fits.message() + "; " + fitting_cache_text(options, made->bytes()));
  cache_ = std::move(made);
  return Status();
}

// Says how many tokens the cache could have beside what is already taken.
std::string RunContext::fitting_cache_text(const KeyValueCacheOptions& wanted, std::size_t bytes) const {
  const Result<std::uint64_t> left = engine_->budget().left();
  const std::uint64_t block_bytes = bytes / static_cast<std::uint64_t>(wanted.blocks);
  const std::uint64_t blocks = left.ok() ? *left / std::max<std::uint64_t>(block_bytes, 1) : 0;
  const std::uint64_t tokens = blocks * static_cast<std::uint64_t>(wanted.block_tokens);
  return blocks == 0 ? "no cache fits" : fmt::format("a cache of {} tokens would fit", tokens);
}

Status RunContext::copy_block(std::int32_t from, std::int32_t to) {
  const BusyGuard guard(busy_);
  ACCORD_RETURN_IF_ERROR(check_entered(guard));
  const std::int64_t blocks = cache_ ? cache_->options().blocks : 0;
  if (from < 0 || to < 0 || from >= blocks || to >= blocks) {
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("block {} cannot be copied to block {}: the cache has {} blocks", from, to, blocks));
  }
  return cache_->copy_block(from, to);
}

// Sets which rows belong to which sequence, for a program with cached attention.
Status RunContext::set_batch(const Program& program, std::optional<std::span<const SequenceRows>> sequences) {
  batch_.clear();
  if (!program.batch_rows) {
    if (!sequences) return memory_->set_batch({}, nullptr);
    return Status(StatusCode::kInvalidArgument, "sequences were given, but this engine has no cached attention");
  }
  if (!sequences) return set_whole_batch(*program.batch_rows);
  if (!cache_) return Status(StatusCode::kWrongState, "sequences need a cache: call create_cache() first");
  std::int64_t first_row = 0;
  for (const SequenceRows& sequence : *sequences) {
    batch_.push_back({first_row, {sequence.rows, sequence.context, sequence.blocks}});
    first_row += sequence.rows;
  }
  ACCORD_RETURN_IF_ERROR(check(batch_, *program.batch_rows, cache_->options()));
  return memory_->set_batch(batch_, cache_.get());
}

// Treats all rows as one new sequence, in a cache that grows to the longest.
Status RunContext::set_whole_batch(std::int64_t rows) {
  const std::int64_t blocks = std::max<std::int64_t>(1, (rows + kernels::kTokenGroup - 1) / kernels::kTokenGroup);
  if (!temporary_cache_ || temporary_cache_->options().blocks < blocks) {
    ACCORD_ASSIGN_OR_RETURN(const std::vector<CachedLayer> layers, cached_layers(engine_->graph()));
    if (temporary_cache_) engine_->budget().release({kCache, temporary_cache_->bytes()});
    temporary_cache_.reset();
    ACCORD_ASSIGN_OR_RETURN(std::unique_ptr<RunCache> made,
                            memory_->create_cache(layers, memory_->passing_cache(layers, blocks)));
    ACCORD_RETURN_IF_ERROR(engine_->budget().reserve({kCache, made->bytes()}));
    temporary_cache_ = std::move(made);
    temporary_blocks_.resize(static_cast<std::size_t>(blocks));
    std::iota(temporary_blocks_.begin(), temporary_blocks_.end(), 0);
  }
  if (rows > 0) batch_.push_back({0, {rows, 0, temporary_blocks_}});
  return memory_->set_batch(batch_, temporary_cache_.get());
}

// Runs this rank's part of the batch, then gathers the outputs of all ranks.
Result<std::vector<TensorView>> RunContext::run_part(std::span<const TensorView> inputs) {
  const BatchSplit& split = *engine_->batch_split();
  ACCORD_ASSIGN_OR_RETURN(const std::int64_t rows, batch_rows(split, engine_->graph(), inputs));
  ACCORD_ASSIGN_OR_RETURN(const BatchPart part, batch_part(split, rows, split.place.rank));
  ACCORD_ASSIGN_OR_RETURN(const BatchPart largest, batch_part(split, rows, 0));
  largest_batch_part_ = largest.count;
  ACCORD_ASSIGN_OR_RETURN(const std::vector<TensorView> outputs,
                          run_bound(inputs_of_part(split, part, inputs), std::nullopt));
  return batch_outputs_.gather(split, rows, outputs, engine_->batch_communicator());
}

Result<std::vector<TensorView>> RunContext::run_bound(std::span<const TensorView> inputs,
                                                      std::optional<std::span<const SequenceRows>> sequences) {
  ACCORD_RETURN_IF_ERROR(begin());
  const Result<CachedProgram*> known = find_program(inputs);
  if (!known.ok() && memory_->shows_faults_at_end() && engine_->divides_runs() &&
      known.status().code() != StatusCode::kInvalidArgument)
    abort_peers(known.status());  // other stages have other ops
  ACCORD_ASSIGN_OR_RETURN(CachedProgram* const found, known);
  Program& program = found->program;
  ACCORD_RETURN_IF_ERROR(place(program, inputs, sequences));
  ACCORD_RETURN_IF_ERROR(synchronize_before_first_run());
  const Execution execution = execution_of(program);
  const Profiling profiling = profiling_.load(std::memory_order_relaxed);
  const Status ran = profiling == Profiling::kOff ? memory_->run(program, execution, found->state.get())
                                                  : run_steps_timed(program, execution, profiling == Profiling::kTrace);
  ACCORD_RETURN_IF_ERROR(end(ran));
  return memory_->outputs(program, engine_->copies_outputs() && !keeps_outputs_);
}

Status RunContext::begin() {
  if (!memory_) {
    ACCORD_ASSIGN_OR_RETURN(memory_, engine_->target().create_run_memory(engine_->threads()));
  }
  if (std::exchange(bindings_, engine_->bindings()) != engine_->bindings()) memory_->forget_communicators();
  return Status();
}

// Places memory, inputs and the tables of the batch.
Status RunContext::place(Program& program, std::span<const TensorView> inputs,
                         std::optional<std::span<const SequenceRows>> sequences) {
  ACCORD_RETURN_IF_ERROR(reserve_arena(program.arena_bytes));
  ACCORD_RETURN_IF_ERROR(set_batch(program, sequences));
  const bool leaves_outputs = !engine_->copies_outputs() && !keeps_outputs_;
  const bool reads_inputs = std::any_of(inputs.begin(), inputs.end(), [](const TensorView& input) {
    return input.buffer.device.type != DeviceType::kCpu;
  });
  return memory_->place(program, inputs, leaves_outputs || reads_inputs ? std::optional(caller_stream_) : std::nullopt);
}

// A shape that runs for the first time may free memory. A device then waits until all its kernels have ended,
// including those of other ranks in this process, which may wait for this rank's kernels. So nothing is launched
// before all ranks have their memory.
Status RunContext::synchronize_before_first_run() {
  if (!memory_->frees_memory_after_kernels() || synchronized_.find(key_) != nullptr) return Status();
  for (auto& [group, communicator] : engine_->peers()) {
    const Status met = communicator.barrier();
    if (!met.ok()) return met.with_context(fmt::format("before the first run of a shape, group \"{}\"", group));
  }
  synchronized_.add(key_, {});
  return Status();
}

// A fault that one stage or replica finds, such as an id outside its table, is not seen by the others. Where faults
// show at the end of a run, the stage has already sent what the others wait for, and all of them agree on the outcome.
// Any other failure belongs to this rank alone and ends the run of the others, which are waiting.
Status RunContext::end(const Status& ran) {
  if (!memory_->shows_faults_at_end()) {
    if (!ran.ok() && engine_->divides_runs()) abort_peers(ran);
    return ran;
  }
  if (!ran.ok() && ran.code() != StatusCode::kInvalidArgument) {
    abort_peers(ran);
    return ran;
  }
  if (!engine_->divides_runs()) return ran;
  std::map<std::string, Communicator> stages = engine_->peers();
  std::erase_if(stages, [](const auto& group) { return group.first != kStageGroup; });
  return agree(stages, {.status = ran, .digest = "", .failure_phrase = "failed in its run"});
}

Result<RunContext::CachedProgram*> RunContext::find_program(std::span<const TensorView> inputs) {
  key_.clear();
  for (const TensorView& input : inputs) key_.insert(key_.end(), input.shape.begin(), input.shape.end());
  if (CachedProgram* const found = programs_.find(key_)) return found;
  ACCORD_ASSIGN_OR_RETURN(const std::vector<std::int64_t> values, match_inputs(engine_->graph(), inputs));
  ACCORD_ASSIGN_OR_RETURN(Program program,
                          engine_->prepare(symbol_values(engine_->graph(), values), *weights_.parameters));
  return &programs_.add(key_, {std::move(program), memory_->create_state()});
}

Execution RunContext::execution_of(Program& program) {
  return {.bases = program.bases,
          .communicators = engine_->communicators(),
          .batch = batch_,
          .started = &started_,
          .largest_batch_part = largest_batch_part_};
}

Status RunContext::run_steps_timed(Program& program, const Execution& execution, bool traces) {
  const std::int64_t first = nanoseconds_now();
  std::int64_t begin = first;
  ACCORD_RETURN_IF_ERROR(memory_->run_each(program, execution, [&](const ProgramStep& step) {
    record_step(step.node, begin, nanoseconds_now(), traces);
    begin = nanoseconds_now();
    return Status();
  }));
  if (traces && !recorded_.truncated) recorded_.runs.push_back({nullptr, first, begin});
  return Status();
}

void RunContext::record_step(const Node* node, std::int64_t begin_ns, std::int64_t end_ns, bool traces) {
  if (traces) return record_trace(node, begin_ns, end_ns);
  const std::lock_guard lock(times_mutex_);
  OpTotals& time = times_[node == nullptr ? "output copy" : node->op];
  ++time.calls;
  time.seconds += static_cast<double>(end_ns - begin_ns) * 1e-9;
}

void RunContext::record_trace(const Node* node, std::int64_t begin_ns, std::int64_t end_ns) {
  recorded_.truncated = recorded_.truncated || recorded_.steps.size() == kMaxRecorded;
  if (!recorded_.truncated) recorded_.steps.push_back({node, begin_ns, end_ns});
}

std::vector<OpTime> RunContext::profile() const {
  const std::lock_guard lock(times_mutex_);
  std::vector<OpTime> times;
  for (const auto& [op, time] : times_) times.push_back({op, time.calls, time.seconds});
  std::sort(times.begin(), times.end(), [](const OpTime& a, const OpTime& b) { return a.seconds > b.seconds; });
  return times;
}

Status RunContext::copy_output(const Buffer& output, void* to) {
  return memory_->copy_to_cpu(to, output.data, output.bytes());
}

Status RunContext::reserve_sampling(std::size_t choices, std::int64_t width) {
  ACCORD_RETURN_IF_ERROR(begin());
  const std::size_t bytes = memory_->reserve_choices(choices, width);
  ACCORD_RETURN_IF_ERROR(engine_->budget().reserve({kSampling, bytes}));
  reserved_sampling_ += bytes;
  return Status();
}

Status RunContext::choose_tokens(const TensorView& logits, std::span<const TokenChoice> choices,
                                 std::span<TokenId> tokens) {
  return memory_->choose_tokens(logits, choices, tokens);
}

}  // namespace accord::engine
