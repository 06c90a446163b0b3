#pragma once
// The device of an engine. host/ and gpu/ implement this interface; above them, nothing distinguishes devices.

#include <map>
#include <memory>
#include <span>
#include <string>

#include "accord/engine.hpp"
#include "engine/package/package.hpp"
#include "engine/partition/partition.hpp"
#include "engine/program/parameters.hpp"
#include "engine/program/step_table.hpp"
#include "engine/program/tensor.hpp"

namespace accord::engine {

/// Bytes that were computed on the CPU while a program was prepared.
struct Constant {
  std::span<const std::byte> bytes;
  std::byte* address = nullptr;  ///< where the program's steps read them
};

/// How weights are loaded.
struct WeightOptions {
  int threads = 1;
  Contents contents = Contents::kRead;  ///< on the CPU
  bool keeps_float8 = true;             ///< on devices that multiply float8; otherwise it is widened
};

class RunMemory;

/// Immutable, so threads may share it.
class Target {
 public:
  virtual ~Target() = default;

  virtual Device device() const = 0;
  /// Fails with kUnsupported if engines on this device cannot have such groups.
  virtual Status check_groups(const std::map<std::string, GroupPlace>& places) const = 0;
  /// The memory of a new context.
  virtual Result<std::unique_ptr<RunMemory>> create_run_memory(int threads) const = 0;

  // Weights.
  /// Returns the bytes of memory that load_parameters() takes.
  virtual std::uint64_t planned_bytes(const Package& package, const Graph& graph, const std::vector<TensorPart>& parts,
                                      const WeightOptions& options) const = 0;
  /// Reads and checks the granules of `parts` (one for each of the graph's parameters) that the graph uses. Fails with
  /// kCorrupt for damaged weights.
  virtual Result<Parameters> load_parameters(Package& package, const Graph& graph, const std::vector<TensorPart>& parts,
                                             const WeightOptions& options) const = 0;
  /// Takes weights in memory of the CPU, by the names of the graph's parameters. Errors as for weights_of().
  virtual Result<Parameters> reference_parameters(const Graph& graph,
                                                  const std::map<std::string, TensorView>& weights) const = 0;
  /// True if an allocation fails when the device lacks the memory. The CPU may kill the process later instead.
  virtual bool refuses_excess_memory() const = 0;

  // Programs.
  /// The steps of programs.
  virtual const StepTable& steps() const = 0;
  /// The steps, on the CPU, that compute values that depend on no input.
  virtual const StepTable& constant_steps() const = 0;
  /// Runs constant_steps() whose storages are at `bases`.
  virtual Status run_constant_steps(std::span<const Step> steps, std::span<std::byte* const> bases) const = 0;
  /// True if products of `rows` rows with weights that follow each other in memory (ParameterMemory::joined) are
  /// computed at once, so that their outputs are columns of one tensor.
  virtual bool multiplies_together(std::int64_t rows) const = 0;
  /// True if steps read the caller's inputs where they are. Otherwise a run copies them into the arena.
  virtual bool reads_inputs_in_place() const = 0;
  /// Sets the addresses of `constants`. Returns the owner of their memory: null if they stay where they are. Fails
  /// with kResourceExhausted if the device lacks memory.
  virtual Result<std::shared_ptr<const void>> place_constants(std::span<Constant> constants) const = 0;
};

}  // namespace accord::engine
