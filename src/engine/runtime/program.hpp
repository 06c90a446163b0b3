#pragma once
// A graph made ready for one set of input shapes: steps over one arena.

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/device/device_memory.hpp"
#include "engine/graph/graph.hpp"
#include "engine/runtime/parameters.hpp"
#include "engine/runtime/tensor.hpp"

namespace accord::engine {

using SymbolValues = std::map<std::string, std::int64_t>;

/// One step and the node that it comes from.
struct ProgramStep {
  Step run;
  const Node* node = nullptr;
};

/// Where a storage's bytes are.
enum class StorageKind : std::uint8_t {
  kInput,      ///< the caller's
  kParameter,  ///< a weight
  kConstant,   ///< computed while the program was prepared, on the CPU; the program's own
  kArena,
};

/// Immutable once prepared, apart from `bases`, which a run fills in.
struct Program {
  std::vector<ProgramStep> steps;
  std::vector<Tensor> outputs;    ///< contiguous, in the arena
  std::vector<std::byte*> bases;  ///< by StorageId
  std::vector<StorageId> inputs;  ///< the storage of each input
  struct ArenaPiece {
    StorageId storage;
    std::size_t offset;
  };
  std::vector<ArenaPiece> arena;
  std::size_t arena_bytes = 0;
  std::optional<std::int64_t> batch_rows;  ///< rows of the batch, if it has attention that keeps its keys
  std::vector<std::unique_ptr<std::byte[]>> constants;
  DeviceMemory device_constants;       ///< the same, of a program on a device
  std::shared_ptr<const Graph> graph;  ///< that it was prepared from, if that is the program's own
};

/// What preparing a program found out that running it does not need: for reports and comparisons.
struct ProgramNotes {
  enum class Kind : std::uint8_t { kSteps, kView, kConstant };
  /// A piece of the arena, from the node that makes it to the last that reads it (both by position in Graph::nodes).
  struct Piece {
    std::size_t offset = 0;
    std::size_t bytes = 0;
    int first = 0;
    int last = 0;
    ValueId value = -1;  ///< that lies there; -1: scratch of the first node
  };
  std::vector<Kind> nodes;  ///< by position in Graph::nodes
  std::vector<Piece> arena;
  std::vector<std::optional<Tensor>> tensors;  ///< by ValueId; none of values that nobody uses
};

/// What a program is prepared from; all of it must outlive the program.
struct ProgramSource {
  const Graph& graph;
  const Parameters& parameters;
  const std::map<std::string, int>& group_index;  ///< groups of more than one rank -> Execution::communicators
  int threads = 1;
  std::optional<DType> activation_dtype = std::nullopt;  ///< as of LoadOptions
  ProgramNotes* notes = nullptr;                         ///< filled in if given
  std::vector<int> ranks_with_codes = {};  ///< of each group by its index, if sums travel in codes of 8 bits
  Device device = {};                      ///< that it runs on
  bool canonical = false;                  ///< LoadOptions::canonical_ranks is not 0
};

/// Prepares every node, folds what depends on no input, and plans the arena. kUnsupported names an op without kernel,
/// kCorrupt a node whose declared output is not what its op gives; both with the place in the source model.
Result<Program> prepare_program(const ProgramSource& source, const SymbolValues& symbols);

}  // namespace accord::engine
