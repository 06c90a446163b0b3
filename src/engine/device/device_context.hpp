#pragma once
// What a RunContext has beside its programs when the engine is on a device: a stream, the arena, the cache, and graphs of programs.

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "accord/engine.hpp"
#include "engine/device/device_cache.hpp"
#include "engine/device/device_run.hpp"
#include "engine/device/token_chooser.hpp"
#include "engine/runtime/program.hpp"

namespace accord::engine {

/// The device of an engine, and its products.
struct EngineDevice {
  device::Runtime* runtime = nullptr;
  device::Blas* blas = nullptr;
  Device device;
};
/// kUnsupported, kNotFound: why the device, or its library of products, is not there.
Result<EngineDevice> find_engine_device(Device device);

/// A program's kernels as a graph; made when a program runs for the second time, and again when memory has moved.
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
  std::uint64_t layout_ = 0;  // DeviceContext::layout_ that it was made for
  int runs_ = 0;
  bool is_refused_ = false;  // it cannot be captured
};

/// One run at a time.
class DeviceContext {
 public:
  static Result<std::unique_ptr<DeviceContext>> create(const EngineDevice& on);
  ~DeviceContext();
  DeviceContext(const DeviceContext&) = delete;
  DeviceContext& operator=(const DeviceContext&) = delete;

  /// Makes the arena as large as the program needs and tells it where its pieces are.
  Status place_arena(Program& program);
  /// What follows begins after what is in `stream` now.
  Status begin_after(Stream stream);
  /// Takes the inputs, on the CPU or a device, to where the program finds them. REQUIRES: place_arena().
  Status copy_inputs(const Program& program, std::span<const TensorView> inputs);
  /// The sequences of the run at hand, and the cache that has their tokens.
  Status set_batch(std::span<const BatchRows> batch, const DeviceCache* cache);

  /// Runs the steps, as a graph where that has been captured, and waits for their end. kInvalidArgument names an id outside its table.
  /// `execution`: all but what this context adds.
  Status run(const Program& program, const Execution& execution, ProgramGraph& graph);
  /// The same step by step, never as a graph: calls after(step) when it has happened.
  using AfterStep = std::function<Status(const ProgramStep& step, const Execution& execution)>;
  Status run_steps(const Program& program, const Execution& execution, const AfterStep& after);
  /// The same of whatever steps `put` runs.
  using PutSteps = std::function<Status(const Execution& execution)>;
  Status run_steps(Execution execution, const PutSteps& put);

  /// Copies memory of the device to the CPU.
  Status copy_to_host(void* to, const void* from, std::size_t bytes);
  /// TokenChooser::choose() of an output [rows, width] of the last run.
  Status choose_tokens(const TensorView& logits, std::span<const TokenChoice> choices, std::span<TokenId> tokens);
  Status copy_block(const DeviceCache& cache, std::int32_t from, std::int32_t to);
  /// What was captured knew other communicators, or a cache, that are gone.
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
  device::Event callers_;  // what was in a stream of the caller's
  device::Event end_;      // of a run
  int multiprocessors_ = 1;
  DeviceMemory arena_;
  DeviceMemory fault_;
  DeviceMemory workspace_;
  Fault* found_ = nullptr;  // the fault as the host reads it
  DeviceBatch batch_;
  TokenChooser chooser_;
  const DeviceCache* cache_ = nullptr;
  std::uint64_t layout_ = 0;  // counts whatever moves memory that graphs know
};

}  // namespace accord::engine
