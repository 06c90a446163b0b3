#pragma once
// A graph made ready for one set of input shapes: steps over one arena.

#include <map>
#include <memory>
#include <string>
#include <vector>

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
  kConstant,   ///< computed while the program was prepared; the program's own
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
  std::vector<std::unique_ptr<std::byte[]>> constants;
};

/// What a program is prepared from; all of it must outlive the program.
struct ProgramSource {
  const Graph& graph;
  const Parameters& parameters;
  const std::map<std::string, int>& group_index;  ///< groups of more than one rank -> Execution::communicators
  int threads = 1;
};

/// Prepares every node, folds what depends on no input, and plans the arena. kUnsupported names an op without kernel,
/// kCorrupt a node whose declared output is not what its op gives; both with the place in the source model.
Result<Program> prepare_program(const ProgramSource& source, const SymbolValues& symbols);

}  // namespace accord::engine
