// Evaluates the shapes of all values and all sizes among the arguments.
#include "engine/passes/fixed_sizes.hpp"

namespace accord::engine {
namespace {

using Symbols = std::map<std::string, std::int64_t>;

Status fix(SymbolicInt& size, const Symbols& symbols) {
  if (size.is_constant()) return Status();
  ACCORD_ASSIGN_OR_RETURN(size, size.evaluate(symbols));
  return Status();
}

Status fix(std::vector<SymbolicInt>& sizes, const Symbols& symbols) {
  for (SymbolicInt& size : sizes) ACCORD_RETURN_IF_ERROR(fix(size, symbols));
  return Status();
}

}  // namespace

Result<Graph> with_fixed_sizes(Graph graph, const Symbols& symbols) {
  for (Value& value : graph.values) ACCORD_RETURN_IF_ERROR(fix(value.shape, symbols));
  for (Node& node : graph.nodes) {
    for (auto& [name, argument] : node.arguments) {
      if (auto* size = std::get_if<SymbolicInt>(&argument)) ACCORD_RETURN_IF_ERROR(fix(*size, symbols));
      if (auto* sizes = std::get_if<std::vector<SymbolicInt>>(&argument)) ACCORD_RETURN_IF_ERROR(fix(*sizes, symbols));
    }
  }
  return graph;
}

}  // namespace accord::engine
