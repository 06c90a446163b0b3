// The partitioner needs a layer and its adapters as one node, whose partial sums are added up once. The passes run
// after it.
#include "engine/graph/ops.hpp"
#include "engine/passes/passes.hpp"

namespace accord::engine {

Graph split_adapters(Graph graph) {
  std::vector<Node> nodes;
  for (Node& node : graph.nodes) {
    if (node.op == kAdaptedLinear) {
      Value base = graph.values[static_cast<std::size_t>(node.outputs.front())];
      base.name += ".base";
      graph.values.push_back(std::move(base));
      const auto id = static_cast<ValueId>(graph.values.size() - 1);
      Node linear{"aten.linear.default", {}, {id}, node.module, node.source};
      for (const std::string name : {"input", "weight", "bias"}) {
        if (const auto found = node.arguments.find(name); found != node.arguments.end())
          linear.arguments.insert(*found);
      }
      nodes.push_back(std::move(linear));
      node.op = "accord.adapters";
      node.arguments.erase("weight");
      node.arguments.erase("bias");
      node.arguments["base"] = ValueRef{id};
    }
    nodes.push_back(std::move(node));
  }
  graph.nodes = std::move(nodes);
  return graph;
}

}  // namespace accord::engine
