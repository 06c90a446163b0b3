#pragma once
// What one op costs, counted from the sizes of what it reads and makes.

#include <cstdint>
#include <map>

#include "engine/graph/graph.hpp"
#include "engine/runtime/program.hpp"

namespace accord::engine {

struct NodeWork {
  std::uint64_t flops = 0;         ///< a multiplication and an addition count as two
  std::uint64_t bytes = 0;         ///< of all tensors that it reads and makes, weights included
  std::uint64_t weight_bytes = 0;  ///< of the weights among them, as the package has them
};

/// The bytes that weights lie in, by value.
using StoredBytes = std::map<ValueId, std::uint64_t>;

/// The work of a node that runs as steps, for these symbols. Of a table that rows are looked up in, only the rows count. Weights that
/// `stored` does not know have the bytes of their dtype.
Result<NodeWork> work_of(const Graph& graph, const Node& node, const SymbolValues& symbols, const StoredBytes& stored);

}  // namespace accord::engine
