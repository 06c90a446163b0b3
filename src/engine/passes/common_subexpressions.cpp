// Each node is written as text: its op and its arguments, after substitution of its inputs. Two nodes with the same
// text and the same dtypes and shapes of their outputs compute the same values.
#include <cstdio>
#include <string>
#include <unordered_map>

#include "engine/graph/node_access.hpp"
#include "engine/passes/passes.hpp"
#include "engine/passes/uses.hpp"

namespace accord::engine {
namespace {

struct ArgumentText {
  std::string operator()(const None&) const { return "none"; }
  std::string operator()(const ValueRef& ref) const { return std::string("%").append(std::to_string(ref.id)); }
  std::string operator()(const SymbolicInt& number) const { return number.to_string(); }
  std::string operator()(double number) const {
    char text[40];
    std::snprintf(text, sizeof(text), "%a", number);
    return text;
  }
  std::string operator()(bool flag) const { return flag ? "true" : "false"; }
  std::string operator()(const std::string& text) const { return "'" + text + "'"; }
  std::string operator()(DType dtype) const { return std::string(to_string(dtype)); }
  std::string operator()(const std::vector<SymbolicInt>& numbers) const {
    std::string text = "[";
    for (const SymbolicInt& number : numbers) text += number.to_string() + ",";
    return text + "]";
  }
  std::string operator()(const std::vector<ValueRef>& refs) const {
    std::string text = "[";
    for (const ValueRef& ref : refs) text += (*this)(ref) + ",";
    return text + "]";
  }
};

std::string node_key(const Graph& graph, const Node& node) {
  std::string key = node.op;
  for (const auto& [name, argument] : node.arguments) key += " " + name + "=" + std::visit(ArgumentText{}, argument);
  for (const ValueId output : node.outputs) {
    const Value& value = graph.values[static_cast<std::size_t>(output)];
    key += " ->" + std::string(to_string(value.dtype)) + ArgumentText{}(value.shape);
  }
  return key;
}

}  // namespace

Graph merge_common_subexpressions(Graph graph) {
  Substitution stands_for(graph);
  std::unordered_map<std::string, std::vector<ValueId>> seen;
  std::vector<Node> kept;
  for (Node& node : graph.nodes) {
    stands_for.apply_to(node);
    if (!group_argument(node)) {
      const auto [first, is_new] = seen.emplace(node_key(graph, node), node.outputs);
      if (!is_new) {
        for (std::size_t i = 0; i < node.outputs.size(); ++i) stands_for.replace(node.outputs[i], first->second[i]);
        continue;
      }
    }
    kept.push_back(std::move(node));
  }
  graph.nodes = std::move(kept);
  stands_for.apply_to_outputs(graph);
  return graph;
}

}  // namespace accord::engine
