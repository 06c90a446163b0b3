#pragma once
// Sums over the ranks while rows are computed that do not need them.

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "engine/graph/graph.hpp"

namespace accord::engine {

/// A graph for one set of sizes, and where its nodes come from.
struct DividedGraph {
  Graph graph;
  std::vector<std::size_t>
      origins;  ///< of each of its nodes: the position in the given graph of the one that it is a part of
};

/// What divides a graph.
struct OverlapRequest {
  const std::map<std::string, std::int64_t>& symbols;  ///< the sizes
  std::int64_t least_rows = 0;                         ///< of a sum that is worth it
  std::function<bool(const std::string&)> has_peers;   ///< whether a group has several ranks
};

/// The same graph with the rows of row-parallel products, and of what follows as far as rows do not need each other, in two halves. The
/// sum over the ranks of one half is under way while the other half is computed: "accord.all_reduce_start", later
/// "accord.all_reduce_wait". Elements are summed as they were, so all bits stay. nullopt if nothing is worth dividing. Pure.
Result<std::optional<DividedGraph>> overlap_sums(const Graph& graph, const OverlapRequest& request);

}  // namespace accord::engine
