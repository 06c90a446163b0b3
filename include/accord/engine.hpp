#pragma once
// Compiled models: an engine package, loaded for one rank of each group, bound to communicators, and run.

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "accord/buffer.hpp"
#include "accord/communicator.hpp"
#include "accord/status.hpp"

namespace accord {

namespace engine {
class LoadedEngine;
class RunContext;
}  // namespace engine

/// This rank's place in one logical group of an engine ("tp": rank 1 of 2).
struct GroupPlace {
  Rank rank = 0;
  int size = 1;
};

/// An input or output of an engine: its memory and its shape. Contiguous, row-major, on the CPU.
struct TensorView {
  Buffer buffer;
  std::vector<std::int64_t> shape;
};

/// What an engine takes or gives. A dimension is a number, or the name of a symbol with its range.
struct TensorInfo {
  std::string name;
  DType dtype = DType::kFloat32;
  std::vector<std::string> shape;  ///< "384", "batch"
};

/// What loading cost: bytes are counted by the reader, not estimated.
struct LoadReport {
  std::uint64_t manifest_bytes = 0;     ///< read of manifest, graph and the headers of weight files
  std::uint64_t weight_bytes_read = 0;  ///< read of weight files
  std::uint64_t shard_bytes = 0;        ///< this rank's part of the sharded tensors
  std::uint64_t replicated_bytes = 0;   ///< tensors that every rank holds
  double seconds = 0;
};

struct LoadOptions {
  int threads = 0;  ///< that a context computes with; 0: ACCORD_THREADS
};

enum class EngineState : std::uint8_t { kUnbound, kBound, kRunning, kClosed };

std::string_view to_string(EngineState state);

/// Whether a context measures its ops. Measuring costs about 50 ns for each.
enum class Profiling : std::uint8_t { kOff, kOn };

/// The time that went into all calls of one op.
struct OpTime {
  std::string op;  ///< "aten.linear.default", "accord.all_reduce"
  std::uint64_t calls = 0;
  double seconds = 0;
};

/// One run's memory: its arena and its prepared kernel calls, for each shape of inputs that it has met. One thread at a time.
class EngineContext {
 public:
  /// Runs the engine on `inputs` (by position; shapes within the package's symbols) and gives its outputs, whose values last
  /// until the next run and whose memory until the context's end. Collective over the bound groups: every rank gives equal
  /// inputs. One of the 32 shapes that were met last allocates nothing but the list that is returned; any other one is
  /// prepared first. kWrongState before bind() and after close().
  /// kInvalidArgument names an input of a wrong dtype or shape, and an id outside its table; all ranks find it alike.
  /// If memory runs out or a kernel fails, the groups are aborted: the other ranks get kAborted instead of waiting.
  [[nodiscard]] Result<std::vector<TensorView>> run(std::span<const TensorView> inputs);

  /// From the next run on.
  void set_profiling(Profiling profiling);
  /// What was measured so far, the op that took longest first.
  std::vector<OpTime> profile() const;
  /// Bytes of the arena, which is as large as the largest shape met so far needs.
  std::size_t arena_bytes() const;

  explicit EngineContext(std::shared_ptr<engine::RunContext> context);

 private:
  std::shared_ptr<engine::RunContext> context_;
};

/// A model with its collectives inside.
///
/// A handle: copies refer to the same engine. States: Unbound -> Bound -> Running -> Bound, any -> Closed; a move that is not
/// in the table is kWrongState. Thread-safe; several contexts may run at once over one copy of the weights if their
/// collectives are ordered alike on all ranks. Any order of destruction is safe: contexts hold the engine, the
/// engine holds its communicators.
class Engine {
 public:
  /// Reads the package at `path` for this rank: the manifest, the graph, and only the granules of its shard, each checked.
  /// `groups`: this rank's place in each logical group of the package; an absent one counts as a group of one rank.
  /// kCorrupt names file, tensor and what is wrong; kInvalidArgument more ranks than units to share, a group unknown to
  /// the package; kUnsupported an op, with its place in the source model. Reads, beside the manifest, exactly its shard.
  [[nodiscard]] static Result<Engine> load(const std::string& path,
                                           const std::map<std::string, GroupPlace>& groups = {},
                                           const LoadOptions& options = {});

  /// Gives each logical group of more than one rank its communicator, of the rank and size that load() was told. Collective:
  /// the ranks agree that all loaded the same package, and kMismatch names those that did not.
  [[nodiscard]] Status bind(const std::map<std::string, Communicator>& groups = {});

  /// load() and bind() in one, for a caller that has the communicators: the outcome is agreed, so that if one rank cannot
  /// load, every rank gets its error and none runs.
  [[nodiscard]] static Result<Engine> load_and_bind(const std::string& path,
                                                    const std::map<std::string, Communicator>& groups,
                                                    const LoadOptions& options = {});

  [[nodiscard]] Result<EngineContext> create_context();

  EngineState state() const;
  const LoadReport& load_report() const;
  const std::vector<TensorInfo>& inputs() const;
  const std::vector<TensorInfo>& outputs() const;
  /// The logical groups of the package and this rank's place in them.
  const std::map<std::string, GroupPlace>& groups() const;

  /// Ends the engine: contexts give kWrongState from now on. Idempotent.
  void close();

  explicit Engine(std::shared_ptr<engine::LoadedEngine> engine);

 private:
  std::shared_ptr<engine::LoadedEngine> engine_;
};

}  // namespace accord
