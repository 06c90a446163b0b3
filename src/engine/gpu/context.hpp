#pragma once
// The part of a RunContext that exists only for an engine on a device: a stream, the arena, the cache, and the graphs
// of programs.

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "accord/engine.hpp"
#include "engine/gpu/cache.hpp"
#include "engine/gpu/run.hpp"
#include "engine/gpu/token_chooser.hpp"
#include "engine/program/program.hpp"

namespace accord::engine {

/// The device of an engine, with its runtime and its library of matrix products.
struct EngineDevice {
  device::Runtime* runtime = nullptr;
  device::Blas* blas = nullptr;
  Device device;
};
/// Fails with kUnsupported or kNotFound if the device, or its library of products, is not available, and says why;
/// with kInvalidArgument if there is no device of that index.
Result<EngineDevice> find_engine_device(Device device);

/// The kernels of a program as a graph. Captured when the program runs for the second time, and again after memory
/// moves.
class ProgramGraph {
 public:
  ProgramGraph() = default;
  ProgramGraph(ProgramGraph&& other) noexcept { *this = std::move(other); }
  ProgramGraph& operator=(ProgramGraph&& other) noexcept;
  ~ProgramGraph() { drop(); }

 private:
  friend class DeviceContext;
  void drop();

  device::Runtime* runtime_ = nullptr;
  std::optional<device::Graph> graph_;
  std::uint64_t layout_ = 0;  // the DeviceContext::layout_ that it was captured for
  int runs_ = 0;
  bool is_refused_ = false;  // the program cannot be captured
};

/// Runs programs on a device, one run at a time.
class DeviceContext {
 public:
  static Result<std::unique_ptr<DeviceContext>> create(const EngineDevice& on);
  ~DeviceContext();
  DeviceContext(const DeviceContext&) = delete;
  DeviceContext& operator=(const DeviceContext&) = delete;

  /// Grows the arena to the size that the program needs and tells the program the addresses of its pieces.
  Status place_arena(Program& program);
  /// Work that is added after this call begins after the work that is in `stream` at the time of the call.
  Status begin_after(Stream stream);
  /// Copies the inputs, on the CPU or a device, to the place where the program reads them. REQUIRES: place_arena().
  Status copy_inputs(const Program& program, std::span<const TensorView> inputs);
  /// Sets the sequences of the next run, and the cache that holds their tokens.
  Status set_batch(std::span<const BatchRows> batch, const DeviceCache* cache);

  /// Runs the steps, as a graph if one has been captured, and waits for them to finish. Fails with kInvalidArgument
  /// if an id is outside its table (the error names it) or a whole number is divided by zero. `execution`: everything
  /// except what this context adds.
  Status run(const Program& program, const Execution& execution, ProgramGraph& graph);
  /// Same step by step, never as a graph. Calls after(step) once each step has completed.
  using AfterStep = std::function<Status(const ProgramStep& step, const Execution& execution)>;
  Status run_steps(const Program& program, const Execution& execution, const AfterStep& after);
  /// Same for any steps that `put` adds.
  using PutSteps = std::function<Status(const Execution& execution)>;
  Status run_steps(Execution execution, const PutSteps& put);

  /// Copies device memory to the CPU.
  Status copy_to_host(void* to, const void* from, std::size_t bytes);
  /// TokenChooser::set_most(). Returns the bytes of device memory that choosing tokens from rows of `width` logits
  /// uses.
  std::size_t expect_choices(std::size_t most, std::int64_t width);
  /// TokenChooser::choose() from an output [rows, width] of the last run.
  Status choose_tokens(const TensorView& logits, std::span<const TokenChoice> choices, std::span<TokenId> tokens);
  Status copy_block(const DeviceCache& cache, std::int32_t from, std::int32_t to);
  /// Makes programs capture their graphs again, since the communicators or the cache of the old graphs are gone.
  void forget_graphs() { ++layout_; }
  std::size_t arena_bytes() const { return arena_.size(); }
  const EngineDevice& on() const { return on_; }

 private:
  explicit DeviceContext(const EngineDevice& on) : on_(on) {}
  Status put_steps(const Program& program, const Execution& execution);
  Status capture(const Program& program, const Execution& execution, ProgramGraph& graph);
  DeviceRun run_of() const;
  Status wait(const Execution& execution);
  Status wait_with_peers(std::span<const std::optional<Communicator>> communicators);

  const EngineDevice on_;
  Stream stream_;
  device::Event callers_;  // the work in the caller's stream
  device::Event end_;      // the end of a run
  int multiprocessors_ = 1;
  DeviceMemory arena_;
  DeviceMemory fault_;
  DeviceMemory workspace_;
  Fault* found_ = nullptr;  // the host's copy of the fault
  DeviceBatch batch_;
  TokenChooser chooser_;
  const DeviceCache* cache_ = nullptr;
  std::uint64_t layout_ = 0;  // counts every change that moves memory known to graphs
};

}  // namespace accord::engine
