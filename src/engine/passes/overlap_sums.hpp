#pragma once
// Overlaps sums over the ranks with the computation of rows that do not need them.

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "engine/graph/graph.hpp"

namespace accord::engine {

/// A graph for one set of sizes, and the origins of its nodes.
struct DividedGraph {
  Graph graph;
  /// For each node, the position in the given graph of the node that it is a part of.
  std::vector<std::size_t> origins;
};

/// How to divide a graph.
struct OverlapRequest {
  const std::map<std::string, std::int64_t>& symbols;  ///< values of the sizes
  std::int64_t min_rows = 0;                           ///< sums of fewer rows are not divided
  std::function<bool(const std::string&)> has_peers;   ///< whether a group has several ranks
};

/// Returns the same graph with two halves of the rows of row-parallel products, and of the nodes that follow as long
/// as their rows are independent. The sum over the ranks of one half is in progress while the other half is computed:
/// "accord.all_reduce_start", and later "accord.all_reduce_wait". Each element is summed as before, so the results are
/// bit-identical. Returns nullopt if nothing is worth dividing. Pure.
Result<std::optional<DividedGraph>> overlap_sums(const Graph& graph, const OverlapRequest& request);

}  // namespace accord::engine
