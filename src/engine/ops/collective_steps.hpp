#pragma once
// Collectives as parts of steps. On a GPU, calls are put into the run's stream.

#include "engine/graph/graph.hpp"
#include "engine/graph/node_access.hpp"
#include "engine/program/preparation.hpp"
#include "engine/program/tensor.hpp"

namespace accord::engine {

/// Returns the memory of `tensor` in a run as an argument for collectives.
inline Buffer buffer_of(const Tensor& tensor, const Execution& execution) {
  return {execution.address(tensor), static_cast<std::size_t>(tensor.count()), tensor.dtype, execution.device};
}
inline ConstBuffer const_buffer_of(const Tensor& tensor, const Execution& execution) {
  return buffer_of(tensor, execution);
}

inline CallOptions call_options(const Execution& execution) {
  CallOptions options;
  options.stream = execution.stream;
  return options;
}

/// Returns a step that calls body(communicator, execution) with the group's communicator. An error names the node.
template <typename Body>
Step call_step(const Node& node, int group, Body body) {
  return [group, body, node = &node](const Execution& execution) {
    Communicator communicator = *execution.communicators[static_cast<std::size_t>(group)];
    const Status status = body(communicator, execution);
    return status.ok() ? status : status.with_context(node_text(*node));
  };
}

/// Adds such a step, which runs each time.
template <typename Body>
void add_call(Preparation& op, int group, Body body) {
  op.run_always();
  op.step(call_step(op.node(), group, std::move(body)));
}

}  // namespace accord::engine
