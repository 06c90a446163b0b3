#pragma once
// The cost of one op, computed from the sizes of its inputs and outputs.

#include <cstdint>
#include <map>

#include "engine/graph/graph.hpp"
#include "engine/program/program.hpp"

namespace accord::engine {

struct NodeWork {
  std::uint64_t flops = 0;         ///< a multiplication and an addition count as two
  std::uint64_t bytes = 0;         ///< of all inputs and outputs, weights included
  std::uint64_t weight_bytes = 0;  ///< of the weights among them, as stored in the package
};

/// Bytes in which weights are stored, by value.
using StoredBytes = std::map<ValueId, std::uint64_t>;

/// Returns the work of a node that runs as steps, for these symbols. For a table in which rows are looked up, only the
/// rows count. Weights that are not in `stored` have the size of their dtype.
Result<NodeWork> work_of(const Graph& graph, const Node& node, const SymbolValues& symbols, const StoredBytes& stored);

}  // namespace accord::engine
