#pragma once
// From a value back to the node that makes it: how passes find a pattern from its end. Nodes that a replacement leaves without
// users go with remove_dead_nodes.

#include <optional>
#include <string_view>
#include <vector>

#include "engine/graph/graph.hpp"

namespace accord::engine {

/// Of a graph whose nodes keep their places and outputs while it is looked at.
class Makers {
 public:
  explicit Makers(const Graph& graph);

  /// The node that makes `value` if it is one of that family ("aten.mul") and has one output; else nullptr.
  const Node* find(std::optional<ValueId> value, std::string_view family) const;
  /// True if nobody but one node uses what `node` makes.
  bool used_once(const Node& node) const;
  int uses(ValueId value) const { return uses_[static_cast<std::size_t>(value)]; }
  const Value& value(ValueId id) const { return graph_.values[static_cast<std::size_t>(id)]; }

 private:
  const Graph& graph_;
  std::vector<int> maker_;  // by ValueId: index of the node, -1 none
  std::vector<int> uses_;
};

/// The two tensors of a node with "self" and "other"; nullopt if one is a number, or if the node has another factor.
struct Operands {
  ValueId self = -1;
  ValueId other = -1;
};
std::optional<Operands> operands(const Node& node);

/// A number given as an argument.
std::optional<double> number_argument(const Node& node, std::string_view name);

}  // namespace accord::engine
