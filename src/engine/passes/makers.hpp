#pragma once
// Maps a value back to the node that produces it, so that passes can match a pattern from its end. remove_dead_nodes
// removes nodes that a replacement leaves without users.

#include <optional>
#include <string_view>
#include <vector>

#include "engine/graph/graph.hpp"

namespace accord::engine {

/// The producers and the number of uses of a graph's values. REQUIRES: the graph's nodes keep their positions and
/// outputs while this is in use.
class Producers {
 public:
  explicit Producers(const Graph& graph);

  /// Returns the node that produces `value` if it is of that family ("aten.mul") and has one output; otherwise
  /// nullptr.
  const Node* find(std::optional<ValueId> value, std::string_view family) const;
  /// Returns true if `node` has one output, which is used exactly once.
  bool used_once(const Node& node) const;
  int uses(ValueId value) const { return uses_[static_cast<std::size_t>(value)]; }
  const Value& value(ValueId id) const { return graph_.values[static_cast<std::size_t>(id)]; }

 private:
  const Graph& graph_;
  std::vector<int> producer_;  // by ValueId: index of the node, -1 if none
  std::vector<int> uses_;
};

/// The two tensors of a node with "self" and "other". operands() returns nullopt if one is a number, or if the node
/// also has an "alpha".
struct Operands {
  ValueId self = -1;
  ValueId other = -1;
};
std::optional<Operands> operands(const Node& node);

/// Returns a number given as an argument, or nullopt if it is anything else.
std::optional<double> number_argument(const Node& node, std::string_view name);

}  // namespace accord::engine
