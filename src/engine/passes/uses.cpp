// Nodes are in an executable order, so one walk from the front replaces every use of a value.
#include "engine/passes/uses.hpp"

#include <numeric>

#include "engine/graph/node_access.hpp"

namespace accord::engine {

std::vector<int> count_uses(const Graph& graph) {
  std::vector<int> uses(graph.values.size(), 0);
  const auto count = [&](ValueId id) { ++uses[static_cast<std::size_t>(id)]; };
  for (const Node& node : graph.nodes) for_each_input(node, count);
  for (const ValueId output : graph.outputs) count(output);
  return uses;
}

Substitution::Substitution(const Graph& graph) : by_(graph.values.size()) { std::iota(by_.begin(), by_.end(), 0); }

void Substitution::apply_to(Node& node) const {
  for_each_input(node, [this](ValueId& id) { id = (*this)(id); });
}

void Substitution::apply_to_outputs(Graph& graph) const {
  for (ValueId& output : graph.outputs) output = (*this)(output);
}

}  // namespace accord::engine
