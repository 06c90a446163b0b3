// One op for sums over ranks, whoever wrote them, so that what is fused with the partitioner's is fused with the model's own too.
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
