// The values that the stages of a pipeline pass on, and those that they send to all ranks (partition/stages.hpp).
#include "engine/ops/collective_steps.hpp"
#include "engine/ops/op_registry.hpp"

namespace accord::engine {
namespace {

// Stages are cut only for groups of several ranks.
Result<int> group_of(const Preparation& op) {
  ACCORD_ASSIGN_OR_RETURN(const std::optional<int> group, op.group("group"));
  if (!group) return op.corrupt("its group has one rank");
  return *group;
}

Status prepare_send(Preparation& op) {
  ACCORD_ASSIGN_OR_RETURN(const int group, group_of(op));
  ACCORD_ASSIGN_OR_RETURN(const std::int64_t to, op.integer("to"));
  ACCORD_ASSIGN_OR_RETURN(const std::vector<std::optional<Tensor>> values, op.tensors("values"));
  std::vector<Tensor> sent;
  for (const std::optional<Tensor>& value : values) {
    ACCORD_ASSIGN_OR_RETURN(sent.emplace_back(), op.contiguous(*value));
  }
  ACCORD_RETURN_IF_ERROR(op.make(0, {}).status());
  add_call(op, group, [=](Communicator& communicator, const Execution& execution) {
    for (const Tensor& value : sent) {
      ACCORD_RETURN_IF_ERROR(
          communicator.send(const_buffer_of(value, execution), static_cast<Rank>(to), call_options(execution)));
    }
    return Status();
  });
  return Status();
}

Status prepare_recv(Preparation& op) {
  ACCORD_ASSIGN_OR_RETURN(const int group, group_of(op));
  ACCORD_ASSIGN_OR_RETURN(const std::int64_t from, op.integer("from"));
  std::vector<Tensor> received;
  for (std::size_t i = 0; i < op.outputs(); ++i) {
    ACCORD_ASSIGN_OR_RETURN(const Sizes sizes, op.declared_sizes(i));
    ACCORD_ASSIGN_OR_RETURN(received.emplace_back(), op.make(i, sizes));
  }
  add_call(op, group, [=](Communicator& communicator, const Execution& execution) {
    for (const Tensor& value : received) {
      ACCORD_RETURN_IF_ERROR(
          communicator.recv(buffer_of(value, execution), static_cast<Rank>(from), call_options(execution)));
    }
    return Status();
  });
  return Status();
}

Status prepare_stage_broadcast(Preparation& op) {
  ACCORD_ASSIGN_OR_RETURN(const int group, group_of(op));
  ACCORD_ASSIGN_OR_RETURN(const std::int64_t root, op.integer("root"));
  ACCORD_ASSIGN_OR_RETURN(const std::optional<Tensor> self, op.maybe_tensor("self"));
  ACCORD_ASSIGN_OR_RETURN(const Sizes sizes, op.declared_sizes(0));
  Tensor given;
  if (self) {
    ACCORD_ASSIGN_OR_RETURN(given, op.contiguous(*self));
    op.alias(0, given);
  } else {
    ACCORD_ASSIGN_OR_RETURN(given, op.make(0, sizes));
  }
  add_call(op, group, [=](Communicator& communicator, const Execution& execution) {
    return communicator.broadcast(buffer_of(given, execution), static_cast<Rank>(root), call_options(execution));
  });
  return Status();
}

constexpr OpEntry kStageOps[] = {
    {"accord.broadcast", prepare_stage_broadcast},
    {"accord.recv", prepare_recv},
    {"accord.send", prepare_send},
};

}  // namespace

std::span<const OpEntry> stage_ops() { return kStageOps; }

}  // namespace accord::engine
