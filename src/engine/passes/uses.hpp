#pragma once
// Counts the uses of values and replaces values by others.

#include <vector>

#include "engine/graph/graph.hpp"

namespace accord::engine {

/// For each value, returns the number of node arguments and graph outputs that use it.
std::vector<int> count_uses(const Graph& graph);

/// Maps each value to the one that replaces it; initially the identity.
class Substitution {
 public:
  explicit Substitution(const Graph& graph);
  void replace(ValueId value, ValueId by) { by_[static_cast<std::size_t>(value)] = (*this)(by); }
  ValueId operator()(ValueId value) const { return by_[static_cast<std::size_t>(value)]; }
  /// Applies the substitution to the arguments of `node`.
  void apply_to(Node& node) const;
  /// Applies the substitution to the outputs of `graph`.
  void apply_to_outputs(Graph& graph) const;

 private:
  std::vector<ValueId> by_;
};

}  // namespace accord::engine
