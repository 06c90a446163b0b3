#include "engine/passes/makers.hpp"

#include "engine/graph/node_access.hpp"
#include "engine/passes/uses.hpp"

namespace accord::engine {

Producers::Producers(const Graph& graph) : graph_(graph), producer_(graph.values.size(), -1), uses_(count_uses(graph)) {
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
    for (const ValueId output : graph.nodes[i].outputs)
      producer_[static_cast<std::size_t>(output)] = static_cast<int>(i);
  }
}

const Node* Producers::find(std::optional<ValueId> value, std::string_view family) const {
  const int index = value ? producer_[static_cast<std::size_t>(*value)] : -1;
  if (index < 0) return nullptr;
  const Node& node = graph_.nodes[static_cast<std::size_t>(index)];
  return node.outputs.size() == 1 && op_family(node.op) == family ? &node : nullptr;
}

bool Producers::used_once(const Node& node) const {
  return node.outputs.size() == 1 && uses(node.outputs.front()) == 1;
}

std::optional<Operands> operands(const Node& node) {
  const auto self = tensor_argument(node, "self");
  const auto other = tensor_argument(node, "other");
  if (!self || !other || find_argument(node, "alpha") != nullptr) return std::nullopt;
  return Operands{*self, *other};
}

std::optional<double> number_argument(const Node& node, std::string_view name) {
  const Argument* argument = find_argument(node, name);
  if (argument == nullptr) return std::nullopt;
  if (const auto* real = std::get_if<double>(argument)) return *real;
  const auto* whole = std::get_if<SymbolicInt>(argument);
  if (whole == nullptr || !whole->is_constant()) return std::nullopt;
  return static_cast<double>(whole->constant());
}

}  // namespace accord::engine
