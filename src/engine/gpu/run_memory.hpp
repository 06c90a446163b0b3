#pragma once
// The memory of a context on a GPU: a stream, the arena, the tables of the batch, and the graphs of programs.

#include <array>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "device/memory.hpp"
#include "engine/gpu/cache.hpp"
#include "engine/gpu/engine_device.hpp"
#include "engine/gpu/pinned_region.hpp"
#include "engine/gpu/run.hpp"
#include "engine/gpu/token_chooser.hpp"
#include "engine/program/region.hpp"
#include "engine/program/run_memory.hpp"

namespace accord::engine::gpu {

/// The kernels of a program as graphs, one for each kind of batch. Captured when the program runs such a batch for the
/// second time, and again after memory moves.
class ProgramGraphs final : public ProgramState {
 public:
  explicit ProgramGraphs(device::Runtime& runtime) : runtime_(runtime) {}
  ~ProgramGraphs() override;
  ProgramGraphs(const ProgramGraphs&) = delete;
  ProgramGraphs& operator=(const ProgramGraphs&) = delete;

 private:
  friend class Memory;
  struct Captured {
    std::optional<device::Graph> graph;
    std::uint64_t layout = 0;  // the Memory::layout_ that it was captured for
    int runs = 0;
  };
  void drop(Captured& captured);

  device::Runtime& runtime_;
  std::array<Captured, kBatchKinds> of_kind_;
  bool capture_failed_ = false;  // the program cannot be captured
};

class Memory final : public RunMemory {
 public:
  static Result<std::unique_ptr<RunMemory>> create(const EngineDevice& on);
  ~Memory() override;
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  Result<std::unique_ptr<RunCache>> create_cache(const CachedParts& parts,
                                                 const KeyValueCacheOptions& options) override;
  /// bfloat16 if all keys and values have that dtype already.
  KeyValueCacheOptions passing_cache(const CachedParts& parts, std::int64_t tokens) const override;
  /// Programs capture their graphs again, since the communicators of the old graphs are gone.
  void forget_communicators() override { ++layout_; }
  void abort(std::string_view) override {}

  std::unique_ptr<ProgramState> create_state() const override { return std::make_unique<ProgramGraphs>(*on_.runtime); }
  Status set_batch(std::span<const BatchRows> batch, const RunCache* cache) override;
  /// Inputs, on the CPU or a GPU, are copied to the place where the program reads them. Those on the CPU pass through
  /// pinned memory.
  Status place(Program& program, std::span<const TensorView> inputs, std::optional<Stream> after) override;

  /// Launches the steps as a graph if one has been captured. Fails with kInvalidArgument if an id is outside its table
  /// (the error names it) or a whole number is divided by zero.
  Status run(const Program& program, const Execution& execution, ProgramState* state) override;
  Status run_steps(const Execution& execution, const AddSteps& add) override;
  Status wait_for_steps() override { return on_.runtime->synchronize(on_.device, stream_); }

  bool frees_memory_after_kernels() const override { return true; }
  bool shows_faults_at_end() const override { return true; }

  Result<std::vector<TensorView>> outputs(const Program& program, bool copies) override;
  Status copy_to_cpu(void* to, const void* from, std::size_t bytes) override;
  std::size_t arena_bytes() const override { return arena_.size(); }

  std::size_t reserve_choices(std::size_t choices, std::int64_t width) override;
  Status choose_tokens(const TensorView& logits, std::span<const TokenChoice> choices,
                       std::span<TokenId> tokens) override;

 private:
  explicit Memory(const EngineDevice& on) : on_(on) {}
  Status place_arena(Program& program);
  Status place_inputs(const Program& program, std::span<const TensorView> inputs);
  Status capture(const Program& program, const Execution& execution, ProgramGraphs& graphs);
  DeviceRun run_of() const;
  Status wait(const Execution& execution);
  Status wait_with_peers(std::span<const std::optional<Communicator>> communicators);

  const EngineDevice on_;
  Stream stream_;
  device::Event caller_event_;  // the work in the caller's stream
  device::Event end_;           // the end of a run
  int multiprocessors_ = 1;
  device::Memory arena_;
  PinnedRegion staging_{"copies to and from the device"};
  PinnedRegion copied_outputs_{"the engine's outputs"};
  GrowingRegion large_outputs_{"the engine's outputs"};  // of more than kMaxPinnedBytes
  device::Memory fault_;
  device::Memory workspace_;
  device::Memory arrivals_;
  device::Memory host_fault_;  // the host's copy of the fault
  DeviceBatch batch_;
  TokenChooser chooser_;
  const DeviceCache* cache_ = nullptr;
  std::uint64_t layout_ = 0;  // counts every change that moves memory known to graphs
};

}  // namespace accord::engine::gpu
