#pragma once
// Collectives as parts of steps.

#include "engine/gpu/run.hpp"
#include "engine/graph/graph.hpp"
#include "engine/graph/node_access.hpp"
#include "engine/program/preparation.hpp"
#include "engine/program/tensor.hpp"

namespace accord::engine {

inline Device device_of(const Execution& execution) {
  return execution.on_device == nullptr ? Device() : execution.on_device->device;
}

/// Returns the memory of `tensor` in a run as an argument for collectives.
inline Buffer buffer_of(const Tensor& tensor, const Execution& execution) {
  return {execution.address(tensor), static_cast<std::size_t>(tensor.count()), tensor.dtype, device_of(execution)};
}
inline ConstBuffer const_buffer_of(const Tensor& tensor, const Execution& execution) {
  return buffer_of(tensor, execution);
}

/// On a device, calls are put into the run's stream.
inline CallOptions call_options(const Execution& execution) {
  CallOptions options;
  if (execution.on_device != nullptr) options.stream = execution.on_device->stream;
  return options;
}

/// Adds a step that calls `call` with the group's communicator. An error names the node.
template <typename Call>
void add_call(Preparation& op, int group, Call call) {
  Step step = [group, call, node = &op.node()](const Execution& execution) {
    Communicator communicator = *execution.communicators[static_cast<std::size_t>(group)];
    const Status status = call(communicator, execution);
    return status.ok() ? status : status.with_context(node_text(*node));
  };
  op.step_always(step, [&] { return step; });
}

}  // namespace accord::engine
