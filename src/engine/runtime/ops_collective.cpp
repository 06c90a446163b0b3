// Collectives inside the engine, on the arena itself. Every rank prepares the same graph, so all meet them in the same order.
#include <fmt/format.h>

#include "engine/graph/node_access.hpp"
#include "engine/runtime/op_registry.hpp"

namespace accord::engine {
namespace {

Status prepare_all_reduce(Preparation& op) {
  ACCORD_ASSIGN_OR_RETURN(const Tensor given, op.tensor("self"));
  ACCORD_ASSIGN_OR_RETURN(const std::optional<int> group, op.group("group"));
  ACCORD_ASSIGN_OR_RETURN(const int kind, op.choice("op", {"sum", "min", "max"}));
  static constexpr ReduceOp kKinds[] = {ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax};
  if (!group) {
    op.alias(0, given);
    return Status();
  }
  ACCORD_ASSIGN_OR_RETURN(const Tensor self, op.contiguous(given));
  ACCORD_ASSIGN_OR_RETURN(const Tensor y, op.make_over(0, self.sizes(), {self}));
  op.step_always([=, reduce = kKinds[kind], node = &op.node()](const Execution& execution) {
    Communicator communicator = *execution.communicators[static_cast<std::size_t>(*group)];
    const auto count = static_cast<std::size_t>(self.count());
    const Buffer output{execution.address(y), count, self.dtype, {}};
    const Status status =
        self.storage == y.storage
            ? communicator.all_reduce(output, reduce)
            : communicator.all_reduce(ConstBuffer(execution.address(self), count, self.dtype), output, reduce);
    return status.ok() ? status : status.with_context(node_text(*node));
  });
  return Status();
}

constexpr OpEntry kTable[] = {
    {"accord.all_reduce", prepare_all_reduce},
};

}  // namespace

std::span<const OpEntry> collective_ops() { return kTable; }

}  // namespace accord::engine
