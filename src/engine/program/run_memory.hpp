#pragma once
// The interfaces through which a context runs programs on its device. host/ and gpu/ implement them.

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "accord/engine.hpp"
#include "engine/program/batch.hpp"
#include "engine/program/program.hpp"
#include "engine/program/token_choice.hpp"

namespace accord::engine {

/// A cache of keys and values.
class RunCache {
 public:
  virtual ~RunCache() = default;
  virtual const KeyValueCacheOptions& options() const = 0;
  virtual std::size_t bytes() const = 0;
  /// Copies a block in all layers. REQUIRES: both blocks exist.
  virtual Status copy_block(std::int32_t from, std::int32_t to) = 0;
};

/// State of a program that a device keeps from one run to the next.
class ProgramState {
 public:
  virtual ~ProgramState() = default;
};

/// The memory of one context, and what runs there: one run at a time. A run is set_batch(), place(), then one of run(),
/// run_each() and run_steps(), then outputs().
class RunMemory {
 public:
  virtual ~RunMemory() = default;

  /// Errors as for KeyValueCache::create(). REQUIRES: nothing runs.
  virtual Result<std::unique_ptr<RunCache>> create_cache(const CachedParts& parts,
                                                         const KeyValueCacheOptions& options) = 0;
  /// The options of a cache for runs of up to `tokens` tokens without sequences, in which each run begins anew.
  virtual KeyValueCacheOptions passing_cache(const CachedParts& parts, std::int64_t tokens) const = 0;
  /// Other communicators are bound from now on.
  virtual void forget_communicators() = 0;
  /// Releases peers that wait for this context outside of the engine's communicators.
  virtual void abort(std::string_view reason) = 0;

  /// Null if there is nothing to keep.
  virtual std::unique_ptr<ProgramState> create_state() const = 0;
  /// The sequences of the next run, and the cache that holds their tokens.
  virtual Status set_batch(std::span<const BatchRows> batch, const RunCache* cache) = 0;
  /// Sets the addresses of the program's arena and inputs. `after`: the run begins after the contents of this stream.
  virtual Status place(Program& program, std::span<const TensorView> inputs, std::optional<Stream> after) = 0;

  /// Runs the steps and waits for them. `execution`: everything but the target, its device and its stream.
  virtual Status run(const Program& program, const Execution& execution, ProgramState* state) = 0;
  /// The same for any steps that `add` runs.
  using AddSteps = std::function<Status(const Execution& execution)>;
  virtual Status run_steps(const Execution& execution, const AddSteps& add) = 0;
  /// Called by `add`: waits until the steps so far have ended.
  virtual Status wait_for_steps() = 0;
  /// The same as run() step by step: calls after(step) once each step has ended.
  using AfterStep = std::function<Status(const ProgramStep& step)>;
  Status run_each(const Program& program, const Execution& execution, const AfterStep& after);

  /// True if memory is freed only once all kernels of the device have ended, those of other ranks too.
  virtual bool frees_memory_after_kernels() const = 0;
  /// True if a fault that steps find, such as an id outside its table, shows only when the run ends.
  virtual bool shows_faults_at_end() const = 0;

  /// Returns the outputs of the last run. `copies`: in memory of the CPU.
  virtual Result<std::vector<TensorView>> outputs(const Program& program, bool copies) = 0;
  /// Waits for the steps that compute the bytes.
  virtual Status copy_to_cpu(void* to, const void* from, std::size_t bytes) = 0;
  virtual std::size_t arena_bytes() const = 0;

  /// Sets how many tokens are chosen at the same time. Returns the bytes that choosing them from rows of `width` logits
  /// takes. 0 where tokens are chosen outside.
  virtual std::size_t reserve_choices(std::size_t choices, std::int64_t width) = 0;
  /// Chooses tokens from an output [rows, width] of the last run that was not copied.
  virtual Status choose_tokens(const TensorView& logits, std::span<const TokenChoice> choices,
                               std::span<TokenId> tokens) = 0;
};

}  // namespace accord::engine
