// Prepares a loaded engine's graph for one set of sizes. At load, one program for the smallest and one for the
// largest shapes are prepared without being run, so that a graph that contradicts itself is rejected at load instead
// of in the first run.
#include <fmt/format.h>

#include <map>

#include "engine/ops/op_registry.hpp"
#include "engine/passes/overlap_sums.hpp"
#include "engine/runtime/loaded_engine.hpp"

namespace accord::engine {

Status LoadedEngine::dry_run() {
  SymbolValues smallest;
  SymbolValues largest;
  for (const Symbol& symbol : model_.graph.symbols) {
    smallest[symbol.name] = symbol.min;
    largest[symbol.name] = symbol.max;
  }
  for (const SymbolValues* symbols : {&smallest, &largest}) {
    ACCORD_ASSIGN_OR_RETURN(largest_arena_bytes_, try_program(*symbols));
    if (model_.graph.symbols.empty()) break;
  }
  return Status();
}

// An arena at the largest sizes must fit. If it does not, the error says which sizes would fit, found by bisection
// between the smallest and the largest sizes of all symbols together.
Status LoadedEngine::check_arena() const {
  constexpr std::int64_t kParts = 1024;
  const std::size_t bytes = reserved_arena_bytes();
  const auto text_of = [&](const SymbolValues& symbols) {
    std::string text;
    for (const auto& [name, value] : symbols) text += fmt::format("{}{}={}", text.empty() ? "" : ", ", name, value);
    return text.empty() ? std::string("an arena") : "an arena at " + text;
  };
  const auto sizes_at = [&](std::int64_t part) {
    SymbolValues symbols;
    for (const Symbol& symbol : model_.graph.symbols) {
      symbols[symbol.name] = symbol.min + (symbol.max - symbol.min) * part / kParts;
    }
    return symbols;
  };
  SymbolValues largest;
  for (const Symbol& symbol : model_.graph.symbols) largest[symbol.name] = symbol.max;
  const MemoryPart arena{text_of(largest), bytes};
  Status status = budget_->check(std::span(&arena, 1));
  if (status.ok() || model_.graph.symbols.empty()) return status;
  ACCORD_ASSIGN_OR_RETURN(const std::uint64_t left, budget_->left());
  std::int64_t fits = -1;
  for (std::int64_t step = kParts; step > 0; step /= 2) {
    const std::int64_t tried = fits + step;
    if (tried >= kParts) continue;
    ACCORD_ASSIGN_OR_RETURN(const Program program, prepare(sizes_at(tried)));
    if (program.arena_bytes <= left) fits = tried;
  }
  const std::string what =
      fits < 0 ? "no sizes fit" : text_of(sizes_at(fits)) + " would fit: export smaller maxima, or raise the limit";
  return Status(status.code(), status.message() + "; " + what);
}

Result<Program> LoadedEngine::prepare(const SymbolValues& symbols, const Parameters& parameters,
                                      ProgramNotes* notes) const {
  const std::map<std::string, int>& group_index = groups_.index();
  std::vector<int> ranks_with_codes(settings_.all_reduce_dtype ? group_index.size() : 0);
  for (const auto& [name, index] : group_index) {
    if (settings_.all_reduce_dtype) ranks_with_codes[static_cast<std::size_t>(index)] = groups_.places().at(name).size;
  }
  const auto prepare_graph = [&](const Graph& graph) {
    return prepare_program({graph, parameters, *target_, find_op, group_index, settings_.threads,
                            settings_.activation_dtype, notes, ranks_with_codes, settings_.canonical_ranks != 0},
                           symbols);
  };
  if (settings_.overlap_rows == 0 || group_index.empty() || notes != nullptr) return prepare_graph(model_.graph);
  const auto has_peers = [&group_index](const std::string& group) { return group_index.contains(group); };
  ACCORD_ASSIGN_OR_RETURN(std::optional<DividedGraph> divided,
                          overlap_sums(model_.graph, {symbols, settings_.overlap_rows, has_peers}));
  if (!divided) return prepare_graph(model_.graph);
  const auto graph = std::make_shared<const Graph>(std::move(divided->graph));
  ACCORD_ASSIGN_OR_RETURN(Program program, prepare_graph(*graph));
  // Profiles name nodes of the engine's own graph.
  for (ProgramStep& step : program.steps) {
    if (step.node == nullptr) continue;
    step.node = &model_.graph.nodes[divided->origins[static_cast<std::size_t>(step.node - graph->nodes.data())]];
  }
  program.graph = graph;
  return program;
}

Result<Program> LoadedEngine::prepare(const SymbolValues& symbols, ProgramNotes* notes) const {
  return prepare(symbols, *weights_.newest().parameters, notes);
}

// Returns the bytes of the program's arena.
Result<std::size_t> LoadedEngine::try_program(const SymbolValues& symbols) const {
  const Result<Program> program = prepare(symbols);
  if (!program.ok()) return program.status().with_context("\"" + model_.path + "\"");
  return program->arena_bytes;
}

}  // namespace accord::engine
