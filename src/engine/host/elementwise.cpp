// A step captures tensors, not addresses. Each thread gets its block of the output and the matching parts of the
// inputs.
#include "engine/ops/elementwise.hpp"

#include "engine/host/blocks.hpp"
#include "engine/host/steps.hpp"
#include "engine/program/calls.hpp"
#include "kernels/index.hpp"

namespace accord::engine::host {
namespace {

// Adds the step body(execution, block), for blocks that cover y.
template <typename Body>
Status add_blocks(Preparation& op, const Tensor& y, const Body& body) {
  op.step([layout = y.layout, body](const Execution& execution) {
    return for_blocks(execution, layout, [&](const Block& block) { return body(execution, block); });
  });
  return Status();
}

kernels::ConstView read(const Execution& execution, const Tensor& tensor, const Block& block) {
  return narrowed(execution.read(tensor), block);
}
kernels::View write(const Execution& execution, const Tensor& tensor, const Block& block) {
  return narrowed(execution.write(tensor), block);
}

Status add_unary(Preparation& op, const UnaryCall& call) {
  return add_blocks(op, call.y, [call](const Execution& execution, const Block& block) {
    return kernels::unary(call.kind, read(execution, call.x, block), write(execution, call.y, block));
  });
}

Status add_binary(Preparation& op, const BinaryCall& call) {
  return add_blocks(op, call.y, [call](const Execution& execution, const Block& block) {
    return kernels::binary(call.kind, read(execution, call.a, block), read(execution, call.b, block),
                           write(execution, call.y, block));
  });
}

Status add_binary_scalar(Preparation& op, const BinaryScalarCall& call) {
  return add_blocks(op, call.y, [call](const Execution& execution, const Block& block) {
    return kernels::binary_scalar(call.kind, read(execution, call.a, block), call.b, write(execution, call.y, block));
  });
}

Status add_power(Preparation& op, const PowerCall& call) {
  return add_blocks(op, call.y, [call](const Execution& execution, const Block& block) {
    return kernels::pow_scalar(read(execution, call.x, block), call.exponent, write(execution, call.y, block));
  });
}

Status add_clamp(Preparation& op, const ClampCall& call) {
  return add_blocks(op, call.y, [call](const Execution& execution, const Block& block) {
    return kernels::clamp(read(execution, call.x, block), call.low, call.high, write(execution, call.y, block));
  });
}

Status add_where(Preparation& op, const WhereCall& call) {
  return add_blocks(op, call.y, [call](const Execution& execution, const Block& block) {
    return kernels::where(read(execution, call.condition, block), read(execution, call.a, block),
                          read(execution, call.b, block), write(execution, call.y, block));
  });
}

Status add_convert(Preparation& op, const ConvertCall& call) {
  if (call.from.dtype == call.to.dtype) {
    op.step([call](const Execution& execution) {
      return kernels::copy_strided(execution.read(call.from), execution.write(call.to));
    });
    return Status();
  }
  return add_blocks(op, call.to, [call](const Execution& execution, const Block& block) {
    return kernels::convert(read(execution, call.from, block), write(execution, call.to, block));
  });
}

Status add_fill(Preparation& op, const FillCall& call) {
  op.step([call](const Execution& execution) { return kernels::fill(call.value, execution.write(call.y)); });
  return Status();
}

Status add_count(Preparation& op, const CountCall& call) {
  op.step(
      [call](const Execution& execution) { return kernels::arange(call.first, call.step, execution.write(call.y)); });
  return Status();
}

}  // namespace

void set_elementwise_steps(StepTable& table) {
  table.set<UnaryCall>(add_unary);
  table.set<BinaryCall>(add_binary);
  table.set<BinaryScalarCall>(add_binary_scalar);
  table.set<PowerCall>(add_power);
  table.set<ClampCall>(add_clamp);
  table.set<WhereCall>(add_where);
  table.set<ConvertCall>(add_convert);
  table.set<FillCall>(add_fill);
  table.set<CountCall>(add_count);
}

}  // namespace accord::engine::host
