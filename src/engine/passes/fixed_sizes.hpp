#pragma once
// A graph whose sizes are numbers.

#include <map>
#include <string>

#include "engine/graph/graph.hpp"

namespace accord::engine {

/// The graph for these values of its symbols, in shapes and arguments. kInvalidArgument if one is missing. Pure.
Result<Graph> with_fixed_sizes(Graph graph, const std::map<std::string, std::int64_t>& symbols);

}  // namespace accord::engine
