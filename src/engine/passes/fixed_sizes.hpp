#pragma once
// A graph whose sizes are all numbers.

#include <map>
#include <string>

#include "engine/graph/graph.hpp"

namespace accord::engine {

/// Returns the graph for these values of its symbols, in shapes and arguments. Fails with kInvalidArgument if a symbol
/// is missing. Pure.
Result<Graph> with_fixed_sizes(Graph graph, const std::map<std::string, std::int64_t>& symbols);

}  // namespace accord::engine
