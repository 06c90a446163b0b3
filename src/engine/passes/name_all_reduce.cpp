// Gives sums over ranks one op name, so that the model's own sums are fused like those that the partitioner adds.
#include "engine/passes/passes.hpp"

namespace accord::engine {

Graph name_all_reduce(Graph graph) {
  for (Node& node : graph.nodes) {
    if (node.op != "_c10d_functional.all_reduce.default") continue;
    node.op = "accord.all_reduce";
    node.arguments = {{"self", node.arguments["input"]},
                      {"group", node.arguments["group_name"]},
                      {"op", node.arguments["reduce_op"]}};
  }
  return graph;
}

}  // namespace accord::engine
