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

/// The group over which any package can be loaded as a pipeline: each rank holds and runs one stage, a run of layers
/// with about an equal part of the weights, and every rank gets the outputs.
inline constexpr const char* kStageGroup = "pp";
/// The group over which any package whose outputs are batches can be loaded as replicas: every rank passes the whole
/// batch to a run, computes a part of it, and gets the whole outputs. For models whose rows do not depend on each
/// other.
inline constexpr const char* kBatchGroup = "dp";

/// The group over which a language model whose layers attend can be loaded to divide long sequences: each rank keeps an
/// equal part of the tokens of every sequence in its cache and computes their rows of a prompt. Ranks pass the same
/// inputs to a run and get the same outputs. On the CPU.
inline constexpr const char* kContextGroup = "cp";

/// An input or output of an engine: its memory and its shape. Contiguous, row-major. An engine on the CPU takes
/// inputs on the CPU. An engine on a GPU takes inputs on that GPU or on the CPU, and copies them in the order of
/// EngineContext::set_stream(). Outputs are on the engine's device unless LoadOptions::outputs says otherwise.
struct TensorView {
  Buffer buffer;
  std::vector<std::int64_t> shape;
};

/// Description of one input or output of an engine. A dimension is a number, or the name of a symbol with its range.
struct TensorInfo {
  std::string name;
  DType dtype = DType::kFloat32;
  std::vector<std::string> shape;  ///< "384", "batch"
};

/// The cost of loading. Bytes are counted by the reader, not estimated.
struct LoadReport {
  std::uint64_t manifest_bytes = 0;     ///< read from the manifest, the graph and the headers of weight files
  std::uint64_t weight_bytes_read = 0;  ///< read from weight files
  std::uint64_t shard_bytes = 0;        ///< this rank's part of the sharded tensors
  std::uint64_t replicated_bytes = 0;   ///< tensors that every rank holds
  double seconds = 0;
};

struct LoadOptions {
  /// Where the weights, the arena and the caches are and where the ops run. On a GPU:
  /// - run() returns when the outputs are available.
  /// - load() rejects an op without a GPU kernel, and names its place in the model.
  /// - 8-bit and 4-bit integer weights are held in the model's own dtype; float8 weights of linear layers stay as
  ///   they are.
  /// - Sums over the ranks are computed on the GPUs, in the order of a plan or of NCCL.
  /// - activation_dtype kInt8 and the groups kBatchGroup and kContextGroup are kUnsupported.
  /// - A model's programs run as CUDA graphs from their second run on.
  /// See docs/gpu.md.
  Device device = {};
  /// For an engine on a GPU: with kCpu, run() copies the outputs to CPU memory. With nullopt they stay on the GPU,
  /// where their memory is valid only until the next run.
  std::optional<DeviceType> outputs = std::nullopt;
  int threads = 0;  ///< compute threads of a context; 0: ACCORD_THREADS
  /// If not 0, a power of two: outputs are bit-identical for every size of the groups that divides it, because each
  /// sum over the inputs of a row-parallel layer is computed as if this many ranks each had a part of it. The sums
  /// stay float32 until they are complete. Needs weights whose units it divides. Also works on GPUs of one model, but
  /// not together with overlap_rows or activation_dtype; there float8 weights are unpacked, and products of more than
  /// 8 rows do not use cuBLASLt. Cost: docs/decisions/engines.md has figures.
  int canonical_ranks = 0;
  /// If not 0, runs of at least this many rows (tokens of a prompt) are computed in two halves: the sum over the
  /// ranks at the end of a row-parallel layer is in progress for one half while the other half is computed. For ranks
  /// on several hosts, where a sum takes long but needs no core: accord's progress thread, or a stream of the group's
  /// own, drives it meanwhile. On the CPU, results are bit-identical to those without it. Equal on all ranks.
  std::int64_t overlap_rows = 0;
  /// kInt8: sums over the ranks of 32 KB and more are sent as 8-bit codes, in groups of 64 neighbors with a float32
  /// scale: about a quarter of the bytes of float32, half those of bfloat16. Each rank's part is rounded once and the
  /// sum once. An element's error is at most 1/127 of the sum, over the ranks, of the largest magnitudes in its group
  /// (plus float32's rounding). All ranks get identical bits, but these depend on the number of ranks and, because
  /// small sums stay exact, on how many rows are computed together. For links that are slow compared with the ranks.
  /// nullopt: exact sums. Excludes canonical_ranks and overlap_rows. Equal on all ranks.
  std::optional<DType> all_reduce_dtype = std::nullopt;
  /// kInt8, on the CPU: the inputs of products with 8-bit or 4-bit weights are rounded to multiples of max |x| / 127,
  /// for each row and each group of the weights, so an input's error is at most max |x| / 254 of its group. The
  /// products then multiply integers, four at a time on processors with VNNI; 4-bit weights gain on other processors,
  /// too. A row's bits depend only on that row. kFloat8E4M3FN, on GPUs: products of more than 8 rows with float8
  /// weights round each row, divided by max |x| / 448, to float8. Other products do not change. nullopt: no product
  /// rounds its inputs. Equal on all ranks.
  std::optional<DType> activation_dtype = std::nullopt;
  /// Bytes that weights, arenas and caches may use together on this rank, on its device. Whatever would need more is
  /// rejected when it is created, with an error that lists the parts and what would fit: load() checks the weights
  /// and an arena at the largest sizes (for a language model, LanguageModel::create() knows these sizes),
  /// create_context() one more arena. An assembled engine counts the weights that it packs and an arena at
  /// EngineParts::sizes. A run is rejected if it needs more all the same: a run of an assembled engine at larger
  /// sizes, or a language model's run without sequences, which needs a cache for one. 0: only the weights are
  /// compared with what the machine and the control group have left.
  std::uint64_t memory_limit = 0;
  /// In place of memory_limit: one limit for several engines together, the parts of a saved program. nullptr: each
  /// engine has its own.
  std::shared_ptr<engine::MemoryBudget> shared_limit = nullptr;
};

/// The parts of an engine that is not loaded from a package.
struct EngineParts {
  std::string name;                           ///< the engine's name in messages
  std::string graph;                          ///< same format as a package's graph.json; docs/engine-format.md
  std::map<std::string, TensorView> weights;  ///< by the names of the graph's parameters
  std::map<std::string, std::int64_t> sizes;  ///< of symbols, at which all ops are tried; by default their smallest
};

/// The cache that a context keeps for the sequences of a language model: keys and values in blocks of tokens, which
/// the caller assigns to sequences as it likes.
struct KeyValueCacheOptions {
  std::int64_t blocks = 0;
  std::int64_t block_tokens = 16;  ///< a multiple of 16
  DType dtype = DType::kFloat32;   ///< or bfloat16, or int8 with a scale for each token and head
};

/// Rows of one sequence in a run of a language model: row i is the sequence's token number `context` + i.
struct SequenceRows {
  std::int64_t rows = 0;
  /// Tokens before these rows, whose keys and values are in the cache. If layers keep a state: all tokens that were
  /// computed with these blocks so far, or a multiple of block_tokens.
  std::int64_t context = 0;
  std::span<const std::int32_t> blocks;  ///< token t is in block blocks[t / block_tokens]
  /// Rows of the sequence's source, which cross attention sees; 0: it has no source.
  std::int64_t source_rows = 0;
  std::span<const std::int32_t> source_blocks = {};  ///< the blocks in which the encoder has stored them
};

enum class EngineState : std::uint8_t { kUnbound, kBound, kRunning, kClosed };

std::string_view to_string(EngineState state);

/// The measurements of a context: nothing, the time in each kind of op, or when each step ran (the first million
/// steps). Measuring costs about 50 ns for each.
enum class Profiling : std::uint8_t { kOff, kOn, kTrace };

/// Total time of all calls of one op.
struct OpTime {
  std::string op;  ///< "aten.linear.default", "accord.all_reduce"
  std::uint64_t calls = 0;
  double seconds = 0;
};

/// A value inside a model, as it is computed. Its memory is valid during the callback that receives it.
struct InnerValue {
  std::string name;      ///< in the package's graph
  std::string module;    ///< of the op that computes it, in the source model: "model.layers.0.mlp.up_proj"
  std::size_t position;  ///< among all values of the graph, in their order
  TensorView value;      ///< whole, even if the ranks hold parts of it; has no memory if it was fused away
};
using SeeValue = std::function<void(const InnerValue& value)>;

/// One run's memory: its arena and its prepared kernel calls, for each shape of inputs seen so far. Used by one
/// thread at a time.
class EngineContext {
 public:
  /// Runs the engine on `inputs` (by position; shapes within the range of the package's symbols) and returns its
  /// outputs. Their values last until the next run, their memory until the end of the context. Collective over the
  /// bound groups: every rank passes equal inputs. If the shape is one of the 32 most recently used, a run allocates
  /// nothing but the returned list; any other shape is prepared first.
  /// Fails with kWrongState before bind() and after close(), and with kInvalidArgument, which names an input of the
  /// wrong dtype or shape or an id outside its table; all ranks detect this alike. If memory runs out or a kernel
  /// fails, the groups are aborted: the other ranks get kAborted instead of waiting.
  [[nodiscard]] Result<std::vector<TensorView>> run(std::span<const TensorView> inputs);

  /// Does the same for a language model whose inputs hold the rows of several sequences one after the other. Their
  /// keys and values are added to the cache, and each row attends to the tokens of its own sequence up to itself. On
  /// the CPU, the bits of a row's result do not depend on what else is in the batch (docs/gpu.md describes GPUs).
  /// run() without sequences computes one sequence and keeps nothing of it. Fails with kInvalidArgument if the
  /// sequences do not fill the rows or name invalid blocks.
  [[nodiscard]] Result<std::vector<TensorView>> run(std::span<const TensorView> inputs,
                                                    std::span<const SequenceRows> sequences);
  /// For an engine on a GPU: from now on, each run begins after the work that is in `stream` of that GPU when run()
  /// is called, so that it reads inputs on the GPU, and overwrites outputs that stayed there, in stream order.
  /// Initially this is the default stream, which waits for all streams that are not non-blocking. Programs that use
  /// other streams pass those, or synchronize them.
  void set_stream(Stream stream);
  /// Runs once, slowly, and passes every value of the model to `see`, on the CPU: first the values that the engine
  /// computes, in their order, then those that were fused away. On a GPU it waits for each value and copies it; no
  /// CUDA graph is used. A language model computes one sequence. Collective over the bound groups: a rank that cannot
  /// run, because its inputs are invalid or its package is gone, makes the others fail as well. Reads the package's
  /// graph again; assembled engines fail with kUnsupported.
  [[nodiscard]] Status run_observed(std::span<const TensorView> inputs, const SeeValue& see);

  /// Creates the cache that the sequences of run() need, and discards an earlier one. On the CPU, it uses memory only
  /// as it fills.
  [[nodiscard]] Status create_cache(const KeyValueCacheOptions& options);
  /// Copies a block of the cache, in all layers.
  [[nodiscard]] Status copy_block(std::int32_t from, std::int32_t to);
  std::size_t cache_bytes() const;

  /// Takes effect from the next run on. May be called from any thread.
  void set_profiling(Profiling profiling);
  /// The measurements of Profiling::kOn so far, the op with the longest time first. May be called from any thread,
  /// even during a run.
  std::vector<OpTime> profile() const;
  /// Returns the recordings of Profiling::kTrace so far on all ranks, side by side, with arrows from the rank that
  /// arrived last at a collective to the ranks that waited for it: JSON for ui.perfetto.dev. Collective over the
  /// bound groups; every rank gets the same text. Fails with kWrongState while another thread runs this context.
  [[nodiscard]] Result<std::string> trace();
  /// Bytes of the arena, which is as large as the largest shape seen so far needs.
  std::size_t arena_bytes() const;

  explicit EngineContext(std::shared_ptr<engine::RunContext> context);

 private:
  std::shared_ptr<engine::RunContext> context_;
};

class LanguageModel;

/// A model with its collectives inside.
///
/// A handle: copies refer to the same engine. States: Unbound <-> Bound <-> Running, any -> Closed; any other move
/// fails with kWrongState. Thread-safe; several contexts may run at once over one copy of the weights if their
/// collectives have the same order on all ranks. Any order of destruction is safe: contexts hold the engine, and the
/// engine holds its communicators.
class Engine {
 public:
  /// Loads the package at `path` for this rank: the manifest, the graph, and only the granules of its shard, each
  /// verified. `groups`: this rank's place in each logical group of the package, in kStageGroup, kBatchGroup and
  /// kContextGroup; an absent group counts as one rank.
  /// Errors: kCorrupt names the file, the tensor and what is wrong. kInvalidArgument if there are more ranks than
  /// units to share, or the package does not know a group. kUnsupported names an op and its place in the source
  /// model. Besides the manifest, it reads exactly this rank's shard.
  [[nodiscard]] static Result<Engine> load(const std::string& path,
                                           const std::map<std::string, GroupPlace>& groups = {},
                                           const LoadOptions& options = {});

  /// Does the same with parts in memory, which are already those of this rank: nothing is sharded, and the
  /// collectives are in the graph. `groups`: this rank's place in each group that the graph names. Weights that no
  /// matrix product uses are not copied: their memory must outlive the engine and its contexts. Errors are those of
  /// load(); canonical_ranks is kUnsupported, and kInvalidArgument names a weight that does not match the graph.
  [[nodiscard]] static Result<Engine> assemble(const EngineParts& parts,
                                               const std::map<std::string, GroupPlace>& groups = {},
                                               const LoadOptions& options = {});

  /// Gives each logical group of more than one rank its communicator, which must have the rank and size that were
  /// passed to load(). Collective: the ranks agree that all of them loaded the same package (for assembled engines,
  /// the same collectives), and kMismatch names those that did not. A bound engine may be bound to other
  /// communicators, but not during a run; if that fails, it stays as it was.
  [[nodiscard]] Status bind(const std::map<std::string, Communicator>& groups = {});
  /// Releases the communicators: the engine must be bound again before it runs. Fails with kWrongState during a run.
  [[nodiscard]] Status unbind();

  /// load() and bind() in one, for a caller that has the communicators. The outcome is agreed: if one rank cannot
  /// load, every rank gets its error and none runs. Here and in bind(), ranks wait up to an hour for a slower one,
  /// whatever the communicators' timeouts are; a rank that dies is an error at once.
  [[nodiscard]] static Result<Engine> load_and_bind(const std::string& path,
                                                    const std::map<std::string, Communicator>& groups,
                                                    const LoadOptions& options = {});

  [[nodiscard]] Result<EngineContext> create_context();

  /// Returns a JSON object that describes where each op of this rank runs, what it was fused into, its bytes and
  /// flops, the collectives and the layout of the arena, for the given sizes of the package's symbols (an absent one
  /// has its smallest size); docs/cli.md describes the format. Fails with kInvalidArgument for an unknown symbol or a
  /// size out of its range. Reads the package's graph again.
  [[nodiscard]] Result<std::string> report(const std::map<std::string, std::int64_t>& sizes = {}) const;

  /// Replaces the weights by those of another package of the same graph: a new checkpoint, or the same one with a
  /// fine-tuned adapter merged into it. Everything is read and checked before anything changes, and several ranks
  /// agree on the outcome: on an error all of them keep the old weights. Runs in progress finish with the old weights
  /// and later runs use the new ones, so each run, of any context on any thread, uses either the one or the other. A
  /// LanguageModel on one rank recomputes what it caches of its sequences. Collective over the bound groups, on all
  /// ranks between the same runs; a LanguageModel on several ranks keeps the weights that it was created with.
  /// Errors: kMismatch names a tensor or graph that differs; kCorrupt and kNotFound as in load(); kResourceExhausted
  /// if memory cannot hold both sets of weights, as it must while old runs last.
  [[nodiscard]] Status load_weights(const std::string& path);

  EngineState state() const;
  /// The package that the engine was loaded from.
  const std::string& path() const;
  const LoadReport& load_report() const;
  const std::vector<TensorInfo>& inputs() const;
  const std::vector<TensorInfo>& outputs() const;
  /// The logical groups of the package and this rank's place in them.
  const std::map<std::string, GroupPlace>& groups() const;

  /// Closes the engine: contexts fail with kWrongState from now on. Idempotent.
  void close();

  explicit Engine(std::shared_ptr<engine::LoadedEngine> engine);

 private:
  friend class LanguageModel;
  std::shared_ptr<engine::LoadedEngine> engine_;
};

}  // namespace accord
