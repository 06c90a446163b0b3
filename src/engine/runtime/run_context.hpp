#pragma once
// The object behind an EngineContext handle: the arena and the prepared programs of one user of an engine.

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <variant>
#include <vector>

#include "accord/engine.hpp"
#include "base/recent_map.hpp"
#include "engine/program/program.hpp"
#include "engine/program/run_memory.hpp"
#include "engine/runtime/context_inputs.hpp"
#include "engine/runtime/loaded_engine.hpp"
#include "engine/runtime/run_times.hpp"
#include "engine/runtime/sequence_caches.hpp"

namespace accord::engine {

/// Does one run at a time; a second one that starts meanwhile is rejected with kWrongState.
/// Half of its methods are those of EngineContext and answer from a part.
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
  void pin_weights() { programs_.pinned = true; }
  /// Switches to the newest weights. Returns whether they differ from those of the last run.
  bool use_newest_weights();
  Status create_cache(const KeyValueCacheOptions& options);
  /// Stores what the program keeps for sequences in the cache of another context, between whose runs it runs. REQUIRES:
  /// that cache has all layers of this engine's graph, and both engines are on the CPU.
  void share_cache(const RunContext& other) { caches_.share(other.caches_); }
  Status copy_block(std::int32_t from, std::int32_t to);
  std::size_t cache_bytes() const { return caches_.bytes(); }
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
  void set_profiling(Profiling profiling) { times_.set_profiling(profiling); }
  /// REQUIRES: between_runs().
  const RecordedRuns& recorded() const { return times_.recorded(); }
  const LoadedEngine& engine() const { return *engine_; }
  /// May be called on any thread, also during a run.
  std::vector<OpTime> profile() const { return times_.totals(); }
  std::size_t arena_bytes() const { return memory_ ? memory_->arena_bytes() : 0; }

 private:
  static constexpr std::size_t kMaxPrograms = 32;
  struct CachedProgram {
    Program program;
    std::unique_ptr<ProgramState> state = {};
  };
  struct AnnotatedProgram {
    Program program;
    ProgramNotes notes;
  };
  using Shapes = std::vector<std::int64_t>;  ///< all dimensions of all inputs, one after the other
  /// Programs for the shapes that ran last.
  struct Programs {
    RecentMap<Shapes, CachedProgram> recent{kMaxPrograms};
    RecentMap<Shapes, std::monostate> synchronized{kMaxPrograms};  ///< shapes for which all ranks have their memory
    Shapes key;                                                    ///< of the current inputs
    EngineWeights::Version weights;                                ///< of the programs
    bool pinned = false;
  };

  Result<std::vector<TensorView>> run_part(std::span<const TensorView> inputs);
  Result<std::vector<TensorView>> run_context_part(std::span<const TensorView> inputs,
                                                   std::optional<std::span<const SequenceRows>> sequences);
  Result<std::vector<TensorView>> run_bound(std::span<const TensorView> inputs,
                                            std::optional<std::span<const SequenceRows>> sequences);
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
  Status run_steps_timed(Program& program, const Execution& execution, Profiling profiling);
  void end_started();

  std::shared_ptr<LoadedEngine> engine_;
  std::unique_ptr<RunMemory> memory_;  // created on first use; outlives the programs and the caches
  SequenceCaches caches_;
  Programs programs_;
  RunTimes times_;
  std::size_t reserved_arena_ = 0;     // of the engine's limit
  std::size_t reserved_sampling_ = 0;  // of the engine's limit
  bool keeps_outputs_ = false;
  Stream caller_stream_ = {};
  std::uint64_t bindings_ = 0;  // the engine's bindings() that memory_ knows
  std::atomic<bool> busy_{false};
  // State of the current run.
  BatchOutputs batch_outputs_;
  ContextInputs context_inputs_;
  std::int64_t largest_batch_part_ = 0;
  std::vector<StartedSum> started_;
};

}  // namespace accord::engine
