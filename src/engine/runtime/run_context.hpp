#pragma once
// The object behind an EngineContext handle: the arena and the prepared programs of one user of an engine.

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <variant>
#include <vector>

#include "accord/engine.hpp"
#include "base/recent_map.hpp"
#include "engine/program/program.hpp"
#include "engine/program/run_memory.hpp"
#include "engine/runtime/loaded_engine.hpp"

namespace accord::engine {

// The parts of an engine's limit that contexts use.
inline constexpr const char* kArena = "arenas";
inline constexpr const char* kCache = "caches of keys and values";
inline constexpr const char* kSampling = "choices of tokens";

/// A step of a run, or a whole run, in nanoseconds of this host's monotonic clock.
struct StepTime {
  const Node* node = nullptr;  ///< of the engine's graph; nullptr for the copy of an output
  std::int64_t begin_ns = 0;
  std::int64_t end_ns = 0;
};

/// The times recorded by Profiling::kTrace.
struct RecordedRuns {
  std::vector<StepTime> steps;
  std::vector<StepTime> runs;
  bool truncated = false;  ///< there was more than is kept
};

/// Does one run at a time; a second one that starts meanwhile is rejected with kWrongState.
class RunContext {
 public:
  explicit RunContext(std::shared_ptr<LoadedEngine> engine);
  ~RunContext();
  RunContext(const RunContext&) = delete;
  RunContext& operator=(const RunContext&) = delete;

  /// Reserves `bytes` of the engine's limit for the arena, so that runs that need no more cannot fail for lack of it.
  Status reserve_arena(std::size_t bytes);

  /// Without sequences, the rows of a language model are one sequence that begins with them.
  Result<std::vector<TensorView>> run(std::span<const TensorView> inputs,
                                      std::optional<std::span<const SequenceRows>> sequences = std::nullopt);
  /// Runs once on a program made for it, and calls `after` after the steps of each node. `ready`: whether the caller
  /// can go on. If one rank cannot, or finds its inputs wrong, all ranks get its error. Collective over the bound
  /// groups.
  using AfterNode = std::function<Status(std::size_t node, const ProgramNotes& notes, const Execution& execution)>;
  Status run_annotated(const Status& ready, std::span<const TensorView> inputs, const AfterNode& after);
  /// Calls `body` while no run can begin. Fails with kWrongState during a run.
  Status between_runs(const std::function<Status()>& body);
  /// From now on, runs use new weights only after use_newest_weights(). By default, each run takes the newest
  /// weights.
  void pin_weights() { pinned_ = true; }
  /// Switches to the newest weights. Returns whether they differ from those of the last run.
  bool use_newest_weights();
  Status create_cache(const KeyValueCacheOptions& options);
  Status copy_block(std::int32_t from, std::int32_t to);
  std::size_t cache_bytes() const { return cache_ ? cache_->bytes() : 0; }
  /// Outputs stay on the engine's device, whatever it was loaded with. copy_output() copies an output, or a part of
  /// it, to CPU memory of the same size.
  void keep_outputs_on_device() { keeps_outputs_ = true; }
  Status copy_output(const Buffer& output, void* to);
  /// Copies memory of the engine's device, once the steps that compute it have ended. Only during a run.
  Status copy_to_cpu(void* to, const void* from, std::size_t bytes) { return memory_->copy_to_cpu(to, from, bytes); }
  /// EngineContext::set_stream().
  void set_stream(Stream stream) { caller_stream_ = stream; }
  /// Reserves, from the engine's limit, the device memory for `choices` simultaneous choices of tokens from rows of
  /// `width`; none on the CPU.
  Status reserve_sampling(std::size_t choices, std::int64_t width);
  /// Chooses tokens from an output that stayed on the device and whose rows are logits. kUnsupported on the CPU.
  Status choose_tokens(const TensorView& logits, std::span<const TokenChoice> choices, std::span<TokenId> tokens);
  /// May be called on any thread, also during a run.
  void set_profiling(Profiling profiling) { profiling_.store(profiling, std::memory_order_relaxed); }
  /// REQUIRES: between_runs().
  const RecordedRuns& recorded() const { return recorded_; }
  const LoadedEngine& engine() const { return *engine_; }
  /// May be called on any thread, also during a run.
  std::vector<OpTime> profile() const;
  std::size_t arena_bytes() const { return memory_ ? memory_->arena_bytes() : 0; }

 private:
  struct CachedProgram {
    Program program;
    std::unique_ptr<ProgramState> state = {};
  };
  struct AnnotatedProgram {
    Program program;
    ProgramNotes notes;
  };
  struct OpTotals {
    std::uint64_t calls = 0;
    double seconds = 0;
  };

  Result<std::vector<TensorView>> run_part(std::span<const TensorView> inputs);
  Result<std::vector<TensorView>> run_bound(std::span<const TensorView> inputs,
                                            std::optional<std::span<const SequenceRows>> sequences);
  Status set_batch(const Program& program, std::optional<std::span<const SequenceRows>> sequences);
  Status set_whole_batch(std::int64_t rows);
  std::string fitting_cache_text(const KeyValueCacheOptions& wanted, std::size_t bytes) const;
  void release_peers(const Status& failure);
  void abort_peers(const Status& failure);
  Result<CachedProgram*> find_program(std::span<const TensorView> inputs);
  Status begin();
  Status place(Program& program, std::span<const TensorView> inputs,
               std::optional<std::span<const SequenceRows>> sequences);
  Status synchronize_before_first_run();
  Status end(const Status& ran);
  Status prepare_annotated(std::span<const TensorView> inputs, AnnotatedProgram& annotated);
  Status run_annotated_steps(AnnotatedProgram& annotated, const AfterNode& after);
  Execution execution_of(Program& program);
  Status run_steps_timed(Program& program, const Execution& execution, bool traces);
  void end_started();
  void record_step(const Node* node, std::int64_t begin_ns, std::int64_t end_ns, bool traces);
  void record_trace(const Node* node, std::int64_t begin_ns, std::int64_t end_ns);

  static constexpr std::size_t kMaxPrograms = 32;
  static constexpr std::size_t kMaxRecorded = std::size_t{1} << 20;

  std::shared_ptr<LoadedEngine> engine_;
  std::unique_ptr<RunMemory> memory_;  // created on first use; outlives the programs and the caches
  std::unique_ptr<RunCache> cache_;
  std::unique_ptr<RunCache> temporary_cache_;  // of runs without sequences: each begins anew
  std::vector<std::int32_t> temporary_blocks_;
  std::size_t reserved_sampling_ = 0;  // of the engine's limit
  bool keeps_outputs_ = false;
  Stream caller_stream_ = {};
  std::vector<BatchRows> batch_;  // of the current run
  BatchOutputs batch_outputs_;
  std::int64_t largest_batch_part_ = 0;      // of the current run
  std::uint64_t bindings_ = 0;               // the engine's bindings() that memory_ knows
  std::vector<StartedSum> started_;          // of the current run
  std::size_t reserved_arena_ = 0;           // of the engine's limit
  using Shapes = std::vector<std::int64_t>;  // all dimensions of all inputs, one after the other
  RecentMap<Shapes, CachedProgram> programs_{kMaxPrograms};
  Shapes key_;                                                    // of the current inputs
  RecentMap<Shapes, std::monostate> synchronized_{kMaxPrograms};  // shapes for which all ranks have their memory
  bool pinned_ = false;
  LoadedEngine::Weights weights_;  // of the programs
  std::atomic<Profiling> profiling_{Profiling::kOff};
  mutable std::mutex times_mutex_;
  std::map<std::string, OpTotals> times_;  // guarded by times_mutex_
  RecordedRuns recorded_;
  std::atomic<bool> busy_{false};
};

}  // namespace accord::engine
