// Walks backwards: a node is alive if the graph or another live node needs one of its outputs.
#include <algorithm>

#include "engine/graph/node_access.hpp"
#include "engine/passes/passes.hpp"

namespace accord::engine {

Graph remove_dead_nodes(Graph graph) {
  std::vector<bool> needed(graph.values.size(), false);
  for (const ValueId output : graph.outputs) needed[static_cast<std::size_t>(output)] = true;
  std::vector<Node> alive;
  for (auto node = graph.nodes.rbegin(); node != graph.nodes.rend(); ++node) {
    const bool lives = std::any_of(node->outputs.begin(), node->outputs.end(),
                                   [&](ValueId id) { return needed[static_cast<std::size_t>(id)]; });
    if (!lives) continue;
    for_each_input(std::as_const(*node), [&](ValueId id) { needed[static_cast<std::size_t>(id)] = true; });
    alive.push_back(std::move(*node));
  }
  std::reverse(alive.begin(), alive.end());
  graph.nodes = std::move(alive);
  return graph;
}

}  // namespace accord::engine
