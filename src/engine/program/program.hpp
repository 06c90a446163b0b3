#pragma once
// A graph that is prepared for one set of input shapes: steps over one arena.

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "accord/engine.hpp"
#include "engine/graph/graph.hpp"
#include "engine/program/parameters.hpp"
#include "engine/program/target.hpp"
#include "engine/program/tensor.hpp"
#include "kernels/elementwise/row_loop.hpp"

namespace accord::engine {

class Preparation;

using SymbolValues = std::map<std::string, std::int64_t>;

/// One step and the node that it comes from.
struct ProgramStep {
  Step run;
  const Node* node = nullptr;
};

/// Where the bytes of a storage are.
enum class StorageKind : std::uint8_t {
  kInput,      ///< the caller's
  kParameter,  ///< a weight
  kConstant,   ///< computed while the program was prepared; owned by the program
  kArena,
};

/// Immutable once prepared, except for `bases`, which a run fills in.
struct Program {
  std::vector<ProgramStep> steps;
  std::vector<Tensor> outputs;    ///< contiguous, in the arena
  std::vector<std::byte*> bases;  ///< indexed by StorageId
  std::vector<StorageId> inputs;  ///< the storage of each input
  struct ArenaPiece {
    StorageId storage;
    std::size_t offset;
  };
  std::vector<ArenaPiece> arena;
  std::size_t arena_bytes = 0;
  /// Sets the addresses of the arena's pieces. `base`: memory of arena_bytes.
  void place_arena(std::byte* base) {
    for (const ArenaPiece& piece : arena) bases[static_cast<std::size_t>(piece.storage)] = base + piece.offset;
  }
  /// Runs all steps.
  Status run(const Execution& execution) const {
    for (const ProgramStep& step : steps) ACCORD_RETURN_IF_ERROR(step.run(execution));
    return Status();
  }
  /// The outputs where they are in the arena, which is memory of `device`. REQUIRES: place_arena().
  std::vector<TensorView> output_views(Device device) const;
  std::optional<std::int64_t> batch_rows;  ///< rows of the batch, if the program has cached attention
  std::vector<std::unique_ptr<std::byte[]>> constants;
  std::shared_ptr<const void> placed_constants;  ///< replace `constants` where the target places them itself
  std::shared_ptr<const Graph> graph;            ///< the graph it was prepared from, if the program owns that
};

/// Details of preparing a program that a run does not need: for reports and comparisons.
struct ProgramNotes {
  enum class Kind : std::uint8_t { kSteps, kView, kConstant };
  /// A piece of the arena, from the node that makes it to the last node that reads it (both are positions in
  /// Graph::nodes).
  struct Piece {
    std::size_t offset = 0;
    std::size_t bytes = 0;
    int first = 0;
    int last = 0;
    ValueId value = -1;  ///< the value that is stored there; -1: scratch of the first node
  };
  std::vector<Kind> nodes;  ///< indexed by position in Graph::nodes
  std::vector<Piece> arena;
  std::vector<std::optional<Tensor>> tensors;  ///< indexed by ValueId; nullopt for values that nobody uses
};

/// An op's function: reads the arguments of a node, and adds outputs and steps.
using PrepareFunction = Status (*)(Preparation& op);

/// How an op is prepared.
struct FoundOp {
  PrepareFunction prepare = nullptr;                                 ///< nullptr if the op is unknown
  kernels::NarrowFloats narrow = kernels::NarrowFloats::kAsFloat32;  ///< how the function sees 16-bit floats
};
/// Finds an op by its full name, for programs with these steps.
using FindOp = FoundOp (*)(std::string_view name, const StepTable& steps);

/// The inputs of prepare_program. All of them must outlive the program.
struct ProgramSource {
  const Graph& graph;
  const Parameters& parameters;
  const Target& target;
  FindOp find_op;
  const std::map<std::string, int>& group_index;  ///< groups of more than one rank -> Execution::communicators
  int threads = 1;
  std::optional<DType> activation_dtype = std::nullopt;  ///< as in LoadOptions
  ProgramNotes* notes = nullptr;                         ///< filled in if not null
  std::vector<int> ranks_with_codes = {};  ///< the size of each group by its index, if sums are sent in 8-bit codes
  bool canonical = false;                  ///< LoadOptions::canonical_ranks is not 0
};

/// Prepares every node, folds what depends on no input, and plans the arena. Fails with kUnsupported, naming the op,
/// if the target has no steps for one, and with kCorrupt, naming the node, if a declared output is not what the op
/// returns. Both errors name the place in the source model.
Result<Program> prepare_program(const ProgramSource& source, const SymbolValues& symbols);

}  // namespace accord::engine
