// The order: first what makes graphs smaller, so that the fusions see layer after layer as it was meant; dead nodes last.
#include "engine/passes/passes.hpp"

#include <utility>

namespace accord::engine {

std::span<const Pass> passes() {
  static constexpr Pass table[] = {
      {"remove_identities", remove_identities},     {"merge_common_subexpressions", merge_common_subexpressions},
      {"remove_dead_nodes", remove_dead_nodes},     {"fuse_linear_activation", fuse_linear_activation},
      {"fuse_add_layer_norm", fuse_add_layer_norm},
  };
  return table;
}

Graph apply_passes(Graph graph) {
  for (const Pass& pass : passes()) graph = pass.apply(std::move(graph));
  return graph;
}

}  // namespace accord::engine
