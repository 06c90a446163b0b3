// Collectives inside the engine, directly on the arena. Every rank prepares the same graph, so all ranks reach them
// in the same order.
#include <algorithm>

#include "engine/graph/node_access.hpp"
#include "engine/ops/all_reduce.hpp"
#include "engine/ops/collective_steps.hpp"
#include "engine/ops/op_registry.hpp"
#include "engine/program/calls.hpp"
#include "kernels/index.hpp"

namespace accord::engine {

namespace {

Result<ReduceOp> reduce_op(const Preparation& op, std::string_view name) {
  static constexpr ReduceOp kKinds[] = {ReduceOp::kSum, ReduceOp::kAvg,  ReduceOp::kProduct, ReduceOp::kMin,
                                        ReduceOp::kMax, ReduceOp::kBand, ReduceOp::kBor,     ReduceOp::kBxor};
  ACCORD_ASSIGN_OR_RETURN(const int kind,
                          op.choice(name, {"sum", "avg", "product", "min", "max", "band", "bor", "bxor"}));
  return kKinds[kind];
}

Status prepare_all_reduce(Preparation& op) {
  ACCORD_ASSIGN_OR_RETURN(const Tensor given, op.tensor("self"));
  ACCORD_ASSIGN_OR_RETURN(const std::optional<int> group, op.group("group"));
  ACCORD_ASSIGN_OR_RETURN(const ReduceOp reduce, reduce_op(op, "op"));
  if (!group) {
    op.alias(0, given);
    return Status();
  }
  ACCORD_ASSIGN_OR_RETURN(const Tensor self, op.contiguous(given));
  ACCORD_ASSIGN_OR_RETURN(const Tensor y, op.make_in_place(0, self.sizes(), {self}));
  op.run_always();
  ACCORD_ASSIGN_OR_RETURN(Step step, all_reduce_step(op, {.group = *group, .op = reduce, .input = self, .output = y}));
  op.step(std::move(step));
  return Status();
}

// Starts a sum that proceeds while other steps run. It overwrites its input unless another node still reads that. On
// a GPU it runs in a stream of the group's own, for which the run's stream waits.
Status prepare_all_reduce_start(Preparation& op) {
  ACCORD_ASSIGN_OR_RETURN(const Tensor given, op.tensor("self"));
  ACCORD_ASSIGN_OR_RETURN(const std::optional<int> group, op.group("group"));
  if (!group) return op.unsupported("a group of one rank has nothing to start");
  ACCORD_ASSIGN_OR_RETURN(const Tensor self, op.contiguous(given));
  ACCORD_ASSIGN_OR_RETURN(const Tensor y, op.make_in_place(0, self.sizes(), {self}));
  const bool in_place = self.storage == y.storage;
  Step copy;
  if (!in_place) {
    ACCORD_ASSIGN_OR_RETURN(copy, op.step_of(ConvertCall{self, y}));
  }
  add_call(op, *group, [in_place, copy, y](Communicator& communicator, const Execution& execution) {
    if (!in_place) ACCORD_RETURN_IF_ERROR(copy(execution));
    execution.started->push_back(
        {y.storage, communicator.all_reduce_async(buffer_of(y, execution), ReduceOp::kSum, call_options(execution))});
    return Status();
  });
  return Status();
}

Status prepare_all_reduce_wait(Preparation& op) {
  ACCORD_ASSIGN_OR_RETURN(const Tensor sum, op.tensor("self"));
  op.alias(0, sum);
  op.run_always();
  op.step([storage = sum.storage, node = &op.node()](const Execution& execution) {
    std::vector<StartedSum>& started = *execution.started;
    const auto found =
        std::find_if(started.begin(), started.end(), [&](const StartedSum& one) { return one.storage == storage; });
    if (found == started.end()) return Status(StatusCode::kCorrupt, node_text(*node) + ": its sum was not started");
    const Status status = found->work.block(execution.stream);
    started.erase(found);
    return status.ok() ? status : status.with_context(node_text(*node));
  });
  return Status();
}

// Returns steps that copy the rows [rows, width of rank] of every rank into [rows, sum of the widths].
Result<std::vector<Step>> weaving_steps(Preparation& op, const Tensor& parts, const Tensor& whole,
                                        const Sizes& widths) {
  const std::int64_t width = whole.size(whole.dims() - 1);
  const std::int64_t rows = width == 0 ? 0 : whole.count() / width;
  std::vector<Step> steps;
  Tensor from = parts, to = whole;
  for (const std::int64_t part_width : widths) {
    const Sizes sizes = {rows, part_width};
    const Sizes strides = {width, 1};
    from.layout = kernels::contiguous_layout(sizes);
    to.layout = kernels::strided_layout(sizes, strides);
    ACCORD_ASSIGN_OR_RETURN(steps.emplace_back(), op.step_of(ConvertCall{from, to}));
    const auto element = static_cast<std::int64_t>(size_of(from.dtype));
    from.offset += rows * part_width * element;
    to.offset += part_width * element;
  }
  return steps;
}

Status prepare_all_gather(Preparation& op) {
  ACCORD_ASSIGN_OR_RETURN(const Tensor given, op.tensor("self"));
  ACCORD_ASSIGN_OR_RETURN(const std::optional<int> group, op.group("group"));
  ACCORD_ASSIGN_OR_RETURN(const Sizes widths, op.integers("widths"));
  if (!group) {
    op.alias(0, given);
    return Status();
  }
  ACCORD_ASSIGN_OR_RETURN(const Tensor part, op.contiguous(given));
  Sizes sizes = given.sizes();
  const std::int64_t rows = sizes.back() == 0 ? 0 : given.count() / sizes.back();
  sizes.back() = 0;
  std::vector<std::size_t> counts;
  for (const std::int64_t width : widths) {
    sizes.back() += width;
    counts.push_back(static_cast<std::size_t>(rows * width));
  }
  ACCORD_ASSIGN_OR_RETURN(const Tensor whole, op.make(0, sizes));
  Tensor parts = whole;  // a single row is already in the order of the ranks
  std::vector<Step> weaving;
  if (rows != 1) {
    ACCORD_ASSIGN_OR_RETURN(parts, op.scratch(given.dtype, sizes));
    ACCORD_ASSIGN_OR_RETURN(weaving, weaving_steps(op, parts, whole, widths));
  }
  add_call(op, *group, [part, parts, counts, weaving](Communicator& communicator, const Execution& execution) {
    ACCORD_RETURN_IF_ERROR(communicator.all_gather_v(const_buffer_of(part, execution), buffer_of(parts, execution),
                                                     counts, call_options(execution)));
    for (const Step& step : weaving) ACCORD_RETURN_IF_ERROR(step(execution));
    return Status();
  });
  return Status();
}

// PyTorch's functional collectives, except all_reduce, which a pass turns into the engine's own op. Their sizes
// depend on the number of ranks, which the engine has already checked.

/// Shared by the functional collectives: a whole input, an output of the sizes that the graph declares, and the
/// group.
struct Exchange {
  Tensor input;
  Tensor output;
  int group = 0;
};

// nullopt if this rank is alone in the group; the output is then the input.
Result<std::optional<Exchange>> prepare_exchange(Preparation& op) {
  ACCORD_ASSIGN_OR_RETURN(const Tensor given, op.tensor("input"));
  ACCORD_ASSIGN_OR_RETURN(const std::optional<int> group, op.group("group_name"));
  if (!group) {
    op.alias(0, given);
    return std::optional<Exchange>();
  }
  Exchange exchange{given, given, *group};
  ACCORD_ASSIGN_OR_RETURN(exchange.input, op.contiguous(given));
  ACCORD_ASSIGN_OR_RETURN(const Sizes sizes, op.declared_sizes());
  ACCORD_ASSIGN_OR_RETURN(exchange.output, op.make(0, sizes));
  return std::optional<Exchange>(exchange);
}

Status prepare_all_gather_into_tensor(Preparation& op) {
  ACCORD_ASSIGN_OR_RETURN(const auto exchange, prepare_exchange(op));
  if (!exchange) return Status();
  add_call(op, exchange->group, [e = *exchange](Communicator& communicator, const Execution& execution) {
    return communicator.all_gather(const_buffer_of(e.input, execution), buffer_of(e.output, execution),
                                   call_options(execution));
  });
  return Status();
}

Status prepare_reduce_scatter_tensor(Preparation& op) {
  ACCORD_ASSIGN_OR_RETURN(const ReduceOp reduce, reduce_op(op, "reduce_op"));
  ACCORD_ASSIGN_OR_RETURN(const auto exchange, prepare_exchange(op));
  if (!exchange) return Status();
  add_call(op, exchange->group, [e = *exchange, reduce](Communicator& communicator, const Execution& execution) {
    return communicator.reduce_scatter(const_buffer_of(e.input, execution), buffer_of(e.output, execution), reduce,
                                       call_options(execution));
  });
  return Status();
}

Status prepare_broadcast(Preparation& op) {
  ACCORD_ASSIGN_OR_RETURN(const std::int64_t source, integer_argument(op.node(), "src"));
  ACCORD_ASSIGN_OR_RETURN(const auto exchange, prepare_exchange(op));
  if (!exchange) return Status();
  const Tensor &input = exchange->input, &output = exchange->output;
  if (input.sizes() != output.sizes() || input.dtype != output.dtype) {
    return op.corrupt("its input and its output differ in sizes or dtype");
  }
  ACCORD_ASSIGN_OR_RETURN(const Step copy, op.step_of(ConvertCall{input, output}));
  add_call(op, exchange->group, [copy, output, source](Communicator& communicator, const Execution& execution) {
    if (communicator.rank() == source) ACCORD_RETURN_IF_ERROR(copy(execution));
    return communicator.broadcast(buffer_of(output, execution), static_cast<Rank>(source), call_options(execution));
  });
  return Status();
}

// Returns rows per rank as counts of elements.
std::vector<std::size_t> element_counts(const Sizes& rows, const Tensor& tensor) {
  const std::int64_t all = tensor.dims() == 0 ? 0 : tensor.size(0);
  const std::int64_t width = all == 0 ? 0 : tensor.count() / all;
  std::vector<std::size_t> counts;
  for (const std::int64_t part : rows) counts.push_back(static_cast<std::size_t>(part * width));
  return counts;
}

Status prepare_all_to_all_single(Preparation& op) {
  ACCORD_ASSIGN_OR_RETURN(const Sizes sent, op.integers("input_split_sizes"));
  ACCORD_ASSIGN_OR_RETURN(const Sizes received, op.integers("output_split_sizes"));
  ACCORD_ASSIGN_OR_RETURN(const auto exchange, prepare_exchange(op));
  if (!exchange) return Status();
  const std::vector<std::size_t> sent_counts = element_counts(sent, exchange->input);
  const std::vector<std::size_t> received_counts = element_counts(received, exchange->output);
  add_call(op, exchange->group, [=, e = *exchange](Communicator& communicator, const Execution& execution) {
    return communicator.all_to_all_v(const_buffer_of(e.input, execution), sent_counts, buffer_of(e.output, execution),
                                     received_counts, call_options(execution));
  });
  return Status();
}

constexpr OpEntry kCollectiveOps[] = {
    {"accord.all_reduce", prepare_all_reduce},
    {"accord.all_reduce_start", prepare_all_reduce_start},
    {"accord.all_reduce_wait", prepare_all_reduce_wait},
    {"accord.all_gather", prepare_all_gather},
    {"_c10d_functional.all_gather_into_tensor.default", prepare_all_gather_into_tensor},
    {"_c10d_functional.all_to_all_single.default", prepare_all_to_all_single},
    {"_c10d_functional.broadcast.default", prepare_broadcast},
    {"_c10d_functional.reduce_scatter_tensor.default", prepare_reduce_scatter_tensor},
};

}  // namespace

std::span<const OpEntry> collective_ops() { return kCollectiveOps; }

}  // namespace accord::engine
