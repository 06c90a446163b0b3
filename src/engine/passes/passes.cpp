// The order: the passes that make graphs smaller come first, so that the fusions see layers in their plain form.
// Passes that check for other users of a value run after dead nodes have been removed.
#include "engine/passes/passes.hpp"

#include <utility>

namespace accord::engine {

std::span<const Pass> passes() {
  static constexpr Pass table[] = {
      {"remove_identities", remove_identities},
      {"merge_common_subexpressions", merge_common_subexpressions},
      {"remove_dead_nodes", remove_dead_nodes},
      {"fuse_rms_norm", fuse_rms_norm},
      {"fuse_rotary", fuse_rotary},
      {"remove_dead_nodes", remove_dead_nodes},
      {"fuse_rotary_attention", fuse_rotary_attention},
      {"remove_dead_nodes", remove_dead_nodes},
      {"fuse_linear_activation", fuse_linear_activation},
      {"fuse_gated_linear", fuse_gated_linear},
      {"fuse_add_norm", fuse_add_norm},
      {"fuse_reduce_norm", fuse_reduce_norm},
      {"remove_dead_nodes", remove_dead_nodes},
      {"fuse_linears", fuse_linears},
  };
  return table;
}

Graph apply_passes(Graph graph) {
  for (const Pass& pass : passes()) graph = pass.apply(std::move(graph));
  return graph;
}

}  // namespace accord::engine
