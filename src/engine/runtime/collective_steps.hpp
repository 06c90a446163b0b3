#pragma once
// Collectives as parts of steps.

#include "engine/graph/graph.hpp"
#include "engine/graph/node_access.hpp"
#include "engine/runtime/preparation.hpp"
#include "engine/runtime/tensor.hpp"

namespace accord::engine {

/// The memory of `tensor` in a run, as collectives take it.
inline Buffer buffer_of(const Tensor& tensor, const Execution& execution) {
  return {execution.address(tensor), static_cast<std::size_t>(tensor.count()), tensor.dtype, {}};
}

/// Adds a step that calls `call` with the group's communicator; its failure tells of the node.
template <typename Call>
void add_call(Preparation& op, int group, Call call) {
  op.step_always([group, call, node = &op.node()](const Execution& execution) {
    Communicator communicator = *execution.communicators[static_cast<std::size_t>(group)];
    const Status status = call(communicator, execution);
    return status.ok() ? status : status.with_context(node_text(*node));
  });
}

}  // namespace accord::engine
