#pragma once
// Compiled models: an engine package, loaded for one rank of each group, bound to communicators, and run.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "accord/buffer.hpp"
#include "accord/communicator.hpp"
#include "accord/status.hpp"

namespace accord {

namespace engine {
class LoadedEngine;
class MemoryBudget;
class RunContext;
}  // namespace engine

/// This rank's place in one logical group of an engine ("tp": rank 1 of 2).
struct GroupPlace {
  Rank rank = 0;
  int size = 1;
};

/// The group over which any package may be loaded as a pipeline: each rank holds and runs one stage, a run of layers with
/// about an equal part of the weights, and every rank gets the outputs.
inline constexpr const char* kStageGroup = "pp";
/// The group over which any package whose outputs are batches may be loaded as replicas: every rank gives a run the whole batch,
/// computes a part of it, and gets the whole outputs. For models whose rows do not depend on each other.
inline constexpr const char* kBatchGroup = "dp";

/// An input or output of an engine: its memory and its shape. Contiguous, row-major. Inputs of an engine on the CPU lie there; those of one on a
/// GPU there or on the CPU, and are copied, in the order of EngineContext::set_stream(). Outputs lie on the engine's device unless LoadOptions::outputs says otherwise.
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
  /// Where weights, arena and caches lie and the ops run. On a GPU: run() returns when the outputs are there; an op without a kernel for GPUs is
  /// refused by load() with its place in the model; weights of 8 and 4 bits are held in the model's own dtype, those of linear layers in float8 as they
  /// are; sums over the ranks are made on the GPUs, in the order of a plan or NCCL; activation_dtype kInt8 and the group kBatchGroup are kUnsupported
  /// there. A model's programs run as CUDA graphs from their second run on. docs/gpu.md.
  Device device = {};
  /// Of an engine on a GPU: kCpu has run() copy the outputs to memory of the CPU. nullopt: they stay on the GPU, where their memory lasts until the
  /// next run only.
  std::optional<DeviceType> outputs = std::nullopt;
  int threads = 0;  ///< that a context computes with; 0: ACCORD_THREADS
  /// If not 0, a power of two: outputs have the same bits at every size of the groups that divides it, as each sum over the inputs
  /// of a row-parallel layer is made as if so many ranks had a part of it. The sums are float32 until they are whole. Needs
  /// weights whose units it divides. On GPUs of one model too, not with overlap_rows or activation_dtype; float8 weights are unpacked and products of more
  /// than 8 rows are not the library's. Cost: docs/decisions.md has figures.
  int canonical_ranks = 0;
  /// If not 0, runs of at least so many rows (tokens of a prompt) are computed in two halves, and the sum over the ranks in which a
  /// row-parallel layer ends is under way for one half while the other one is computed. For ranks on several hosts, where a sum takes
  /// long and no core; accord's progress thread, or a stream of the group's own, sees to it meanwhile. No bit changes on the CPU. Equal on all ranks.
  std::int64_t overlap_rows = 0;
  /// kInt8: sums over the ranks of 32 KB and more travel in codes of 8 bits, in groups of 64 neighbours with a scale in float32: about a
  /// quarter of the bytes of float32, half those of bfloat16. Each rank's part is rounded once and the sum once; an element's error is
  /// at most 1/127 of what the largest magnitudes of its group add up to over the ranks (and float32's rounding). All
  /// ranks have the same bits, which now depend on the number of ranks and, as small sums stay exact, on how many rows are computed
  /// together. For links that are slow beside the ranks. nullopt: exact sums. Not with canonical_ranks or overlap_rows. Equal on all ranks.
  std::optional<DType> all_reduce_dtype = std::nullopt;
  /// kInt8, on the CPU: rows that are multiplied with weights of 8 or 4 bits are rounded to whole numbers of max |x| / 127, for each row and each of
  /// the weights' groups: an input's error is at most max |x| / 254 of its group. Products are of integers then, which processors with VNNI do four
  /// at a time, of 4-bit weights others too; a row's bits depend on that row alone. kFloat8E4M3FN, on GPUs: products of more than 8 rows with float8
  /// weights round each row, divided by max |x| / 448, to float8. Other products stay as they are. nullopt: so do all. Equal on all ranks.
  std::optional<DType> activation_dtype = std::nullopt;
  /// Bytes that weights, arenas and caches may take together on this rank, on its device. What would need more is refused when it is made, with its
  /// parts and what would fit: by load() weights and an arena at the largest sizes (of a language model LanguageModel::create()
  /// knows them), by create_context() one more arena. An assembled engine counts weights that it packs and an arena at
  /// EngineParts::sizes. A run that needs more all the same is refused: of an assembled engine at larger sizes, and of a language model
  /// without sequences, which takes a cache for one. 0: only the weights are held against what the machine and the control
  /// group have left.
  std::uint64_t memory_limit = 0;
  /// In place of memory_limit: one for several engines together, the parts of a saved program. nullptr: each engine has its own.
  std::shared_ptr<engine::MemoryBudget> shared_limit = nullptr;
};

/// What an engine is made of that does not come from a package.
struct EngineParts {
  std::string name;                           ///< what messages call it
  std::string graph;                          ///< as a package's graph.json; docs/engine-format.md
  std::map<std::string, TensorView> weights;  ///< by the names of the graph's parameters
  std::map<std::string, std::int64_t> sizes;  ///< of symbols, for which all ops are tried; by default their smallest
};

/// What a context keeps of the sequences that a language model continues: keys and values in blocks of tokens, which the
/// caller gives to sequences as it likes.
struct KeyValueCacheOptions {
  std::int64_t blocks = 0;
  std::int64_t block_tokens = 16;  ///< a multiple of 16
  DType dtype = DType::kFloat32;   ///< or bfloat16, or int8 with a scale for each token and head
};

/// Rows of one sequence in a run of a language model: row i is its token number `context` + i.
struct SequenceRows {
  std::int64_t rows = 0;
  std::int64_t context = 0;              ///< its tokens before these rows, whose keys and values are in the cache
  std::span<const std::int32_t> blocks;  ///< token t lies in block blocks[t / block_tokens]
};

enum class EngineState : std::uint8_t { kUnbound, kBound, kRunning, kClosed };

std::string_view to_string(EngineState state);

/// Whether a context measures its ops: the time in each kind of op, or when each step ran (the first million of them). Measuring
/// costs about 50 ns for each.
enum class Profiling : std::uint8_t { kOff, kOn, kTrace };

/// The time that went into all calls of one op.
struct OpTime {
  std::string op;  ///< "aten.linear.default", "accord.all_reduce"
  std::uint64_t calls = 0;
  double seconds = 0;
};

/// A value inside a model, as it is made; its memory lasts for the call that shows it.
struct InnerValue {
  std::string name;      ///< in the package's graph
  std::string module;    ///< of the op that makes it, in the source model: "model.layers.0.mlp.up_proj"
  std::size_t position;  ///< among all values of the graph, in their order
  TensorView value;      ///< whole, also where the ranks hold parts of it; without memory if it was fused away
};
using SeeValue = std::function<void(const InnerValue& value)>;

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

  /// The same for a language model, whose inputs hold the rows of several sequences one after the other: their keys and
  /// values are added to the cache, and each row sees the tokens of its own sequence up to itself. On the CPU a row's result has
  /// the same bits whatever else is in the batch (docs/gpu.md tells of GPUs). run() without sequences computes one sequence and keeps nothing of it.
  /// kInvalidArgument if the sequences do not fill the rows, or name blocks that are none.
  [[nodiscard]] Result<std::vector<TensorView>> run(std::span<const TensorView> inputs,
                                                    std::span<const SequenceRows> sequences);
  /// Of an engine on a GPU: from now on runs begin after what is in `stream` of that GPU when they are called, so that they read inputs on the GPU,
  /// and write over outputs that stayed there, in its order; at first it is the default stream, which waits for all streams that were not made
  /// non-blocking. Programs that use others pass those, or synchronize them.
  void set_stream(Stream stream);
  /// Runs once, slowly, and shows `see` every value of the model, on the CPU: those that the engine makes, in their order, then those that were
  /// fused away. On a GPU it waits for each of them and copies it; no graph is used. A language model computes one sequence. Collective over the bound groups: a rank that cannot run, as its inputs are
  /// wrong or its package is gone, fails the others too. Reads the package's graph again; kUnsupported of assembled engines.
  [[nodiscard]] Status run_observed(std::span<const TensorView> inputs, const SeeValue& see);

  /// Makes the cache that the sequences of run() need, and forgets an earlier one. Its memory is taken when it is used.
  [[nodiscard]] Status create_cache(const KeyValueCacheOptions& options);
  /// Copies a block of the cache, in all layers.
  [[nodiscard]] Status copy_block(std::int32_t from, std::int32_t to);
  std::size_t cache_bytes() const;

  /// From the next run on; on any thread.
  void set_profiling(Profiling profiling);
  /// What Profiling::kOn measured so far, the op that took longest first. On any thread, also during a run.
  std::vector<OpTime> profile() const;
  /// What Profiling::kTrace recorded so far on all ranks, side by side, with arrows from the rank that came to a collective last to
  /// those that waited: JSON for ui.perfetto.dev. Collective over the bound groups; every rank gets the same text. kWrongState while
  /// another thread runs this context.
  [[nodiscard]] Result<std::string> trace();
  /// Bytes of the arena, which is as large as the largest shape met so far needs.
  std::size_t arena_bytes() const;

  explicit EngineContext(std::shared_ptr<engine::RunContext> context);

 private:
  std::shared_ptr<engine::RunContext> context_;
};

class LanguageModel;

/// A model with its collectives inside.
///
/// A handle: copies refer to the same engine. States: Unbound <-> Bound <-> Running, any -> Closed; a move that is not
/// in the table is kWrongState. Thread-safe; several contexts may run at once over one copy of the weights if their
/// collectives are ordered alike on all ranks. Any order of destruction is safe: contexts hold the engine, the
/// engine holds its communicators.
class Engine {
 public:
  /// Reads the package at `path` for this rank: the manifest, the graph, and only the granules of its shard, each checked.
  /// `groups`: this rank's place in each logical group of the package, in kStageGroup and in kBatchGroup; an absent one
  /// counts as a group of one rank.
  /// kCorrupt names file, tensor and what is wrong; kInvalidArgument more ranks than units to share, a group unknown to
  /// the package; kUnsupported an op, with its place in the source model. Reads, beside the manifest, exactly its shard.
  [[nodiscard]] static Result<Engine> load(const std::string& path,
                                           const std::map<std::string, GroupPlace>& groups = {},
                                           const LoadOptions& options = {});

  /// The same of parts in memory, as they are for this rank: nothing is divided, the collectives are in the graph. `groups`: this
  /// rank's place in each group that the graph names. Weights that no matrix product uses stay where they are: their memory must
  /// outlive the engine and its contexts. Errors as of load(); kUnsupported canonical_ranks; kInvalidArgument names a weight that is not as the graph says.
  [[nodiscard]] static Result<Engine> assemble(const EngineParts& parts,
                                               const std::map<std::string, GroupPlace>& groups = {},
                                               const LoadOptions& options = {});

  /// Gives each logical group of more than one rank its communicator, of the rank and size that load() was told. Collective:
  /// the ranks agree that all loaded the same package (of assembled engines, the same collectives), and kMismatch names those
  /// that did not. A bound engine may be bound to others, not during a run; if that fails, it stays as it was.
  [[nodiscard]] Status bind(const std::map<std::string, Communicator>& groups = {});
  /// Lets go of the communicators: the engine has to be bound before it runs again. kWrongState during a run.
  [[nodiscard]] Status unbind();

  /// load() and bind() in one, for a caller that has the communicators: the outcome is agreed, so that if one rank cannot
  /// load, every rank gets its error and none runs. Here and in bind() ranks wait up to an hour for one that takes longer,
  /// whatever the communicators' timeouts; one that dies is an error at once.
  [[nodiscard]] static Result<Engine> load_and_bind(const std::string& path,
                                                    const std::map<std::string, Communicator>& groups,
                                                    const LoadOptions& options = {});

  [[nodiscard]] Result<EngineContext> create_context();

  /// One JSON object that tells where each op of this rank runs, what it was fused into, its bytes and flops, the collectives and
  /// the plan of the arena, for these sizes of the package's symbols (an absent one is the smallest); docs/cli.md describes it.
  /// kInvalidArgument for a symbol that there is not or a size out of its range. Reads the package's graph again.
  [[nodiscard]] Result<std::string> report(const std::map<std::string, std::int64_t>& sizes = {}) const;

  /// Takes the weights of another package of the same graph: a new checkpoint, or the same one with what was learned merged into it.
  /// Everything is read and checked before anything changes, and on several ranks agreed: on an error all go on with the old weights.
  /// Runs under way end with the old weights, later ones have the new; so each run, of any context on any thread, has
  /// either. A LanguageModel of one rank computes what it keeps of its sequences anew. Collective over the bound groups, on all
  /// ranks between the same runs; a LanguageModel of several ranks keeps the weights that it was made with.
  /// kMismatch names a tensor or graph that is another; kCorrupt, kNotFound as load(); kResourceExhausted: while old
  /// runs last, both are in memory.
  [[nodiscard]] Status load_weights(const std::string& path);

  EngineState state() const;
  /// The package that it was loaded from.
  const std::string& path() const;
  const LoadReport& load_report() const;
  const std::vector<TensorInfo>& inputs() const;
  const std::vector<TensorInfo>& outputs() const;
  /// The logical groups of the package and this rank's place in them.
  const std::map<std::string, GroupPlace>& groups() const;

  /// Ends the engine: contexts give kWrongState from now on. Idempotent.
  void close();

  explicit Engine(std::shared_ptr<engine::LoadedEngine> engine);

 private:
  friend class LanguageModel;
  std::shared_ptr<engine::LoadedEngine> engine_;
};

}  // namespace accord
