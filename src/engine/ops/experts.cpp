// Mixtures of experts. The rows of a run are sorted by the experts chosen for them. Each chosen expert then computes
// its rows together, and the results for a row are added up in the order of its choices. A row's bits depend on that
// row alone. If the ranks share the experts, a rank has only some of them: either it skips the choices of other
// experts, or its rows have arrived from all ranks already sorted and its results are sent back.
#include <fmt/format.h>

#include <algorithm>

#include "base/rounding.hpp"
#include "engine/graph/node_access.hpp"
#include "engine/ops/op_registry.hpp"
#include "kernels/experts.hpp"
#include "kernels/linear/product.hpp"
#include "kernels/top_k.hpp"

namespace accord::engine {
namespace {

using kernels::Arithmetic;
using kernels::RowsLayout;

/// Everything but addresses. Rows are stored in the order of their experts, from `rows` on; the rows of one expert
/// are prepared together.
struct Experts {
  const PackedStack* up = nullptr;
  const PackedStack* gate = nullptr;  // may be null
  const PackedStack* down = nullptr;
  kernels::Activation activation = kernels::Activation::kNone;
  Arithmetic up_arithmetic = Arithmetic::kFloat32, down_arithmetic = Arithmetic::kFloat32;
  std::int64_t first_expert = 0;  // this rank's first
  std::int64_t in_all = 0;        // experts of all ranks
  Tensor input, weights, output;
  Tensor first;             // [experts + 1], as in ExpertGroups: where the rows of each expert begin
  Tensor rows, inner_rows;  // prepared rows, [choices, bytes of one row]
  Tensor inner, made;       // results of up (and gate) and of down: [choices, width]
  Tensor scratch;           // one piece per thread
  int panel_parts = 1;      // parts in which the threads share the weights of one expert
};

struct Choices {
  std::int64_t first = 0, count = 0;
};

Choices choices_of(const Experts& experts, const Execution& execution, std::int64_t expert) {
  const auto* first = execution.data<const std::int64_t>(experts.first) + experts.first_expert;
  return {first[expert], first[expert + 1] - first[expert]};
}

// Rows prepared together never need more memory than the same rows prepared one by one.
std::byte* prepared(const Tensor& rows, const Execution& execution, std::int64_t first) {
  return execution.data<std::byte>(rows) + first * rows.size(1);
}

kernels::Rows rows_from(const Tensor& tensor, const Execution& execution, std::int64_t first) {
  std::byte* const data =
      execution.data<std::byte>(tensor) + first * tensor.size(1) * static_cast<std::int64_t>(size_of(tensor.dtype));
  return {data, tensor.dtype, tensor.size(1)};
}

// Computes one part of the product of one expert's rows.
Status multiply(const Experts& experts, const Execution& execution, std::int64_t expert, int part, int thread,
                const PackedStack& weights, const PackedStack* gate, const Tensor& x, const Tensor& y) {
  const Choices choices = choices_of(experts, execution, expert);
  if (choices.count == 0) return Status();
  const bool is_up = &weights == experts.up;
  const kernels::PackedMatrix matrix = weights.matrix(expert);
  kernels::PackedMatrix gate_matrix;
  const Arithmetic arithmetic = is_up ? experts.up_arithmetic : experts.down_arithmetic;
  ACCORD_ASSIGN_OR_RETURN(const RowsLayout layout, kernels::rows_layout(matrix, arithmetic, choices.count));
  kernels::ProductCall call;
  call.weights = &matrix;
  if (gate != nullptr) {
    gate_matrix = gate->matrix(expert);
    call.gate = &gate_matrix;
  }
  call.layout = &layout;
  call.x = prepared(x, execution, choices.first);
  call.activation = is_up ? experts.activation : kernels::Activation::kNone;
  call.y = rows_from(y, execution, choices.first);
  kernels::ProductShare share = kernels::whole(call);
  const PartRange panels = part_range(share.last_panel, 1, part, experts.panel_parts);
  share.first_panel = panels.first;
  share.last_panel = panels.last;
  const std::span<std::byte> scratch(execution.data<std::byte>(experts.scratch) + thread * experts.scratch.size(1),
                                     kernels::kProductScratch);
  return kernels::product(call, share, scratch);
}

// Computes this rank's experts for their rows. `token_of` maps a sorted row to its row of the input.
template <typename TokenOf>
Status run_products(const Experts& experts, const Execution& execution, const TokenOf& token_of) {
  const std::int64_t count = experts.up->count();
  const auto for_each_expert = [&](const auto& body) {
    return execution.pool.run(static_cast<int>(count), [&](int expert) {
      const Choices chosen = choices_of(experts, execution, expert);
      return chosen.count == 0 ? Status() : body(expert, chosen);
    });
  };
  const auto for_each_part = [&](const auto& body) {
    const int parts = experts.panel_parts;
    return execution.pool.run(static_cast<int>(count) * parts,
                              [&](int at, int thread) { return body(at / parts, at % parts, thread); });
  };
  ACCORD_RETURN_IF_ERROR(for_each_expert([&](std::int64_t expert, const Choices& chosen) {
    ACCORD_ASSIGN_OR_RETURN(const RowsLayout layout,
                            kernels::rows_layout(experts.up->matrix(expert), experts.up_arithmetic, chosen.count));
    std::byte* const memory = prepared(experts.rows, execution, chosen.first);
    for (std::int64_t i = 0; i < chosen.count; ++i) {
      const kernels::Rows row = rows_from(experts.input, execution, token_of(chosen.first + i));
      kernels::prepare_row(layout, row.data, row.dtype, i, memory);
    }
    return Status();
  }));
  ACCORD_RETURN_IF_ERROR(for_each_part([&](std::int64_t expert, int part, int thread) {
    return multiply(experts, execution, expert, part, thread, *experts.up, experts.gate, experts.rows, experts.inner);
  }));
  ACCORD_RETURN_IF_ERROR(for_each_expert([&](std::int64_t expert, const Choices& chosen) {
    ACCORD_ASSIGN_OR_RETURN(const RowsLayout layout,
                            kernels::rows_layout(experts.down->matrix(expert), experts.down_arithmetic, chosen.count));
    const kernels::Rows inner = rows_from(experts.inner, execution, chosen.first);
    kernels::prepare_rows(layout, {inner.data, inner.dtype, inner.stride}, 0, chosen.count,
                          prepared(experts.inner_rows, execution, chosen.first));
    return Status();
  }));
  return for_each_part([&](std::int64_t expert, int part, int thread) {
    return multiply(experts, execution, expert, part, thread, *experts.down, nullptr, experts.inner_rows, experts.made);
  });
}

// Adds up `rows` rows of the output.
Status add_up(const Experts& experts, const Execution& execution, kernels::CombineCall combine) {
  combine.width = experts.output.size(1);
  combine.weights = execution.data<const float>(experts.weights);
  combine.x = execution.data<const float>(experts.made);
  combine.y = rows_from(experts.output, execution, 0);
  const int parts = combine.rows < 16 ? 1 : execution.pool.threads();
  return execution.pool.run(parts, [&](int part) {
    const PartRange range = part_range(combine.rows, 1, part, parts);
    kernels::combine_experts(combine, range.first, range.last);
    return Status();
  });
}

// Rows and the experts chosen for them; this rank may have only some of these experts.
struct ChosenExperts {
  Experts experts;
  std::int64_t tokens = 0, top_k = 0;
  Tensor ids, order, place;  // as in ExpertGroups
};

Status run_chosen(const ChosenExperts& chosen, const Node& node, const Execution& execution) {
  const Experts& experts = chosen.experts;
  const kernels::ExpertGroups groups{execution.data<std::int64_t>(experts.first),
                                     execution.data<std::int64_t>(chosen.order),
                                     execution.data<std::int64_t>(chosen.place)};
  const auto bad = kernels::group_by_expert(execution.address(chosen.ids), chosen.ids.dtype,
                                            chosen.tokens * chosen.top_k, experts.in_all, groups);
  if (bad) {
    return Status(StatusCode::kInvalidArgument, fmt::format("{}: expert {} at position {} is outside [0, {})",
                                                            node_text(node), bad->id, bad->position, experts.in_all));
  }
  ACCORD_RETURN_IF_ERROR(
      run_products(experts, execution, [&](std::int64_t i) { return groups.order[i] / chosen.top_k; }));
  kernels::CombineCall combine;
  combine.rows = chosen.tokens;
  combine.top_k = chosen.top_k;
  combine.place = groups.place;
  combine.first_place = groups.first[experts.first_expert];
  combine.last_place = groups.first[experts.first_expert + experts.up->count()];
  return add_up(experts, execution, combine);
}

// Computes rows that were dispatched to this rank. They are sorted, and each has one expert.
Status run_dispatched(const Experts& experts, const Execution& execution) {
  ACCORD_RETURN_IF_ERROR(run_products(experts, execution, [](std::int64_t i) { return i; }));
  kernels::CombineCall combine;
  combine.rows = execution.data<const std::int64_t>(experts.first)[experts.up->count()];
  combine.top_k = 1;
  return add_up(experts, execution, combine);
}

Status set_weights(Preparation& op, Experts& experts) {
  experts.up = op.packed_experts("up");
  experts.down = op.packed_experts("down");
  experts.gate = op.has("gate") ? op.packed_experts("gate") : nullptr;
  if (experts.up == nullptr || experts.down == nullptr || (op.has("gate") && experts.gate == nullptr)) {
    return op.unsupported("experts have a kernel with weights of the package only");
  }
  const PackedStack& up = *experts.up;
  const PackedStack& down = *experts.down;
  const bool fits = up.count() == down.count() && up.out() == down.in();
  const bool gate_fits =
      experts.gate == nullptr || (experts.gate->count() == up.count() && experts.gate->out() == up.out() &&
                                  experts.gate->in() == up.in() && experts.gate->format() == up.format());
  return fits && gate_fits ? Status() : op.corrupt("the weights of its experts do not fit each other");
}

// Returns memory for the prepared rows of any grouping of `choices` rows.
Result<Tensor> rows_scratch(Preparation& op, const PackedStack& weights, Arithmetic arithmetic, std::int64_t choices) {
  ACCORD_ASSIGN_OR_RETURN(const RowsLayout one, kernels::rows_layout(weights.matrix(0), arithmetic, 1));
  return op.scratch(DType::kUInt8, {choices, static_cast<std::int64_t>(round_up(one.bytes(), 64))});
}

constexpr std::initializer_list<DType> kExpertRowTypes = {DType::kFloat32, DType::kBFloat16, DType::kFloat16};

// Prepares everything for `choices` sorted rows of `input`, except where the rows of each expert begin.
Result<Experts> experts_of(Preparation& op, const Tensor& input, const Tensor& weights, std::int64_t choices,
                           std::int64_t output_rows) {
  Experts experts;
  ACCORD_RETURN_IF_ERROR(set_weights(op, experts));
  ACCORD_RETURN_IF_ERROR(op.require(input, kExpertRowTypes));
  ACCORD_RETURN_IF_ERROR(op.require(weights, kExpertRowTypes));
  if (input.dims() != 2 || input.size(1) != experts.up->in()) {
    return op.corrupt("its rows are not of the width of its experts");
  }
  static constexpr kernels::Activation kinds[] = {kernels::Activation::kSilu,     kernels::Activation::kGeluErf,
                                                  kernels::Activation::kGeluTanh, kernels::Activation::kRelu,
                                                  kernels::Activation::kTanh,     kernels::Activation::kNone};
  ACCORD_ASSIGN_OR_RETURN(const int kind,
                          op.choice("activation", {"silu", "gelu", "gelu_tanh", "relu", "tanh", "none"}));
  experts.activation = kinds[kind];
  const DType inner = input.dtype == DType::kBFloat16 ? DType::kBFloat16 : DType::kFloat32;
  experts.up_arithmetic = op.arithmetic(input.dtype, experts.up->format());
  experts.down_arithmetic = op.arithmetic(inner, experts.down->format());
  experts.in_all = experts.up->count();
  ACCORD_ASSIGN_OR_RETURN(experts.input, op.contiguous(input));
  ACCORD_ASSIGN_OR_RETURN(const Tensor wide, op.converted(weights, DType::kFloat32));
  ACCORD_ASSIGN_OR_RETURN(experts.weights, op.contiguous(wide));
  ACCORD_ASSIGN_OR_RETURN(experts.rows, rows_scratch(op, *experts.up, experts.up_arithmetic, choices));
  ACCORD_ASSIGN_OR_RETURN(experts.inner_rows, rows_scratch(op, *experts.down, experts.down_arithmetic, choices));
  ACCORD_ASSIGN_OR_RETURN(experts.inner, op.scratch(inner, {choices, experts.up->out()}));
  ACCORD_ASSIGN_OR_RETURN(experts.made, op.scratch(DType::kFloat32, {choices, experts.down->out()}));
  const auto scratch = static_cast<std::int64_t>(kernels::kProductScratch);
  ACCORD_ASSIGN_OR_RETURN(experts.scratch, op.scratch(DType::kUInt8, {op.threads(), scratch}));
  ACCORD_ASSIGN_OR_RETURN(experts.output, op.make(0, {output_rows, experts.down->out()}));
  experts.panel_parts = op.threads();
  return experts;
}

Status prepare_experts(Preparation& op) {
  ACCORD_ASSIGN_OR_RETURN(const Tensor input, op.tensor("input"));
  ACCORD_ASSIGN_OR_RETURN(const Tensor ids, op.tensor("experts"));
  ACCORD_ASSIGN_OR_RETURN(const Tensor weights, op.tensor("weights"));
  ACCORD_RETURN_IF_ERROR(op.require(ids, {DType::kInt32, DType::kInt64}));
  if (input.dims() != 2 || ids.dims() != 2 || ids.size(0) != input.size(0) || weights.sizes() != ids.sizes()) {
    return op.corrupt("its rows, their experts and their weights do not fit");
  }
  ChosenExperts chosen;
  ACCORD_ASSIGN_OR_RETURN(chosen.experts, experts_of(op, input, weights, ids.count(), input.size(0)));
  Experts& experts = chosen.experts;
  ACCORD_ASSIGN_OR_RETURN(experts.first_expert, op.integer("first_expert", 0));
  ACCORD_ASSIGN_OR_RETURN(experts.in_all, op.integer("experts_in_all", experts.in_all));
  chosen.tokens = input.size(0);
  chosen.top_k = ids.size(1);
  ACCORD_ASSIGN_OR_RETURN(chosen.ids, op.contiguous(ids));
  ACCORD_ASSIGN_OR_RETURN(experts.first, op.scratch(DType::kInt64, {experts.in_all + 1}));
  ACCORD_ASSIGN_OR_RETURN(chosen.order, op.scratch(DType::kInt64, {ids.count()}));
  ACCORD_ASSIGN_OR_RETURN(chosen.place, op.scratch(DType::kInt64, {ids.count()}));
  op.step_always(
      [chosen, node = &op.node()](const Execution& execution) { return run_chosen(chosen, *node, execution); });
  return Status();
}

Status prepare_dispatched_experts(Preparation& op) {
  ACCORD_ASSIGN_OR_RETURN(const Tensor input, op.tensor("input"));
  ACCORD_ASSIGN_OR_RETURN(const Tensor weights, op.tensor("weights"));
  ACCORD_ASSIGN_OR_RETURN(const Tensor first, op.tensor("experts"));
  ACCORD_ASSIGN_OR_RETURN(Experts experts, experts_of(op, input, weights, input.size(0), input.size(0)));
  experts.first = first;
  op.step_always([experts](const Execution& execution) { return run_dispatched(experts, execution); });
  return Status();
}

// Along the last dimension. 16-bit floats are compared in float32.
Status prepare_top_k(Preparation& op) {
  ACCORD_ASSIGN_OR_RETURN(const Tensor self, op.tensor("self"));
  if (self.dims() == 0) return op.unsupported("the best elements of a scalar");
  ACCORD_ASSIGN_OR_RETURN(const int dim, op.dimension("dim", self.dims(), -1));
  if (op.outputs() != 2) return op.corrupt("it has two outputs");
  if (dim + 1 != self.dims()) return op.unsupported("the best elements have a kernel along the last dimension only");
  ACCORD_ASSIGN_OR_RETURN(Tensor x, op.converted(self, kernels::is_real(self.dtype) ? DType::kFloat32 : self.dtype));
  if (!kernels::can_take_top_k(x.dtype)) {
    return op.unsupported("the best elements have no kernel for " + std::string(to_string(x.dtype)));
  }
  if (!as_rows(x.layout)) {
    ACCORD_ASSIGN_OR_RETURN(x, op.contiguous(x));
  }
  const Rows rows = *as_rows(x.layout);
  ACCORD_ASSIGN_OR_RETURN(const std::int64_t k, op.integer("k"));
  if (k < 0 || k > self.size(dim)) return op.corrupt("more elements are wanted than there are");
  ACCORD_ASSIGN_OR_RETURN(const bool largest, op.flag("largest", true));
  Sizes sizes = self.sizes();
  sizes.back() = k;
  ACCORD_ASSIGN_OR_RETURN(const Tensor values, op.scratch(x.dtype, sizes));
  ACCORD_ASSIGN_OR_RETURN(const Tensor indices, op.make(1, sizes));
  ACCORD_RETURN_IF_ERROR(op.require(indices, {DType::kInt64}));
  const kernels::Extreme extreme = largest ? kernels::Extreme::kLargest : kernels::Extreme::kSmallest;
  op.step(
      [=](const Execution& execution) {
        kernels::TopKCall call;
        call.extreme = extreme;
        call.dtype = x.dtype;
        call.x = execution.address(x);
        call.rows = rows.rows;
        call.width = rows.width;
        call.x_row_stride = rows.stride;
        call.k = k;
        call.values = execution.address(values);
        call.indices = execution.data<std::int64_t>(indices);
        kernels::top_k(call);
        return Status();
      },
      [&] {
        return top_k_on_device({extreme, x, rows, k, values, indices});
      });
  ACCORD_ASSIGN_OR_RETURN(const Tensor rounded, op.converted(values, op.declared_dtype(0)));
  op.alias(0, rounded);
  return Status();
}

constexpr OpEntry kExpertsOps[] = {
    {"accord.dispatched_experts", prepare_dispatched_experts},
    {"accord.experts", prepare_experts},
    {"accord.experts.default", prepare_experts},
    {"aten.topk.default", prepare_top_k},
};

}  // namespace

std::span<const OpEntry> expert_ops() { return kExpertsOps; }

}  // namespace accord::engine
