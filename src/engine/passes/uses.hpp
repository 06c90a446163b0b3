#pragma once
// Who uses a value, and how to put another one in its place.

#include <vector>

#include "engine/graph/graph.hpp"

namespace accord::engine {

/// For each value, by how many arguments of nodes and outputs of the graph it is used.
std::vector<int> count_uses(const Graph& graph);

/// Maps each value to the one that stands for it from now on; the identity at first.
class Substitution {
 public:
  explicit Substitution(const Graph& graph);
  void replace(ValueId value, ValueId by) { by_[static_cast<std::size_t>(value)] = (*this)(by); }
  ValueId operator()(ValueId value) const { return by_[static_cast<std::size_t>(value)]; }
  /// Applies it to the arguments of `node`.
  void apply_to(Node& node) const;
  /// Applies it to the outputs of `graph`.
  void apply_to_outputs(Graph& graph) const;

 private:
  std::vector<ValueId> by_;
};

}  // namespace accord::engine
