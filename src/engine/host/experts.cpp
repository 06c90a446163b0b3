// The rows of a run are sorted by the experts chosen for them. Each chosen expert then computes its rows together, and
// the results for a row are added up in the order of its choices. A row's bits depend on that row alone.
#include "engine/ops/experts.hpp"

#include <fmt/format.h>

#include "base/rounding.hpp"
#include "engine/graph/node_access.hpp"
#include "engine/host/run.hpp"
#include "engine/host/steps.hpp"
#include "kernels/experts.hpp"
#include "kernels/linear/product.hpp"

namespace accord::engine::host {
namespace {

using kernels::Arithmetic;
using kernels::RowsLayout;

/// The products of this rank's experts, with everything but addresses. Rows are stored in the order of their experts,
/// from `rows` on; the rows of one expert are prepared together.
struct ExpertProducts {
  const PackedStack* up = nullptr;
  const PackedStack* gate = nullptr;  // may be null
  const PackedStack* down = nullptr;
  kernels::GateOptions options;
  std::optional<Tensor> up_bias, gate_bias;
  Arithmetic up_arithmetic = Arithmetic::kFloat32, down_arithmetic = Arithmetic::kFloat32;
  std::int64_t first_expert = 0;  // this rank's first
  std::int64_t in_all = 0;        // experts of all ranks
  Tensor input, y;
  std::optional<Tensor> weights;      // of the choices; without them, all are 1
  Tensor first;                       // [experts + 1], as in ExpertGroups: where the rows of each expert begin
  Tensor rows, inner_rows;            // prepared rows, [choices, bytes of one row]
  Tensor inner, made;                 // results of up (and gate) and of down: [choices, width]
  std::optional<Tensor> gate_values;  // float32 results of gate, if up and gate are multiplied one after the other
  bool has_plain_gate = true;         // the product of up makes the inner values
  Tensor scratch;                     // one piece per thread
  int panel_parts = 1;                // parts in which the threads share the weights of one expert
};

struct Choices {
  std::int64_t first = 0, count = 0;
};

Choices choices_of(const ExpertProducts& experts, const Execution& execution, std::int64_t expert) {
  const auto* first = execution.data<const std::int64_t>(experts.first) + experts.first_expert;
  return {first[expert], first[expert + 1] - first[expert]};
}

// Rows prepared together never need more memory than the same rows prepared one by one.
std::byte* prepared_rows(const Tensor& rows, const Execution& execution, std::int64_t first) {
  return execution.data<std::byte>(rows) + first * rows.size(1);
}

kernels::Rows expert_rows(const Tensor& tensor, const Execution& execution, std::int64_t first) {
  std::byte* const data =
      execution.data<std::byte>(tensor) + first * tensor.size(1) * static_cast<std::int64_t>(size_of(tensor.dtype));
  return {data, tensor.dtype, tensor.size(1)};
}

/// A product of the rows of each expert with its own weights.
struct ExpertProduct {
  const PackedStack& weights;
  const PackedStack* gate = nullptr;  // may be null
  kernels::Activation activation = kernels::Activation::kNone;
  Arithmetic arithmetic = Arithmetic::kFloat32;
  const Tensor& x;
  const Tensor& y;
};

constexpr std::int64_t kRowGrain = 16;  // rows of an expert that threads share have at least so many

/// One of `parts` runs of panels of an expert's weights, or of its rows if it has fewer panels than that; and the
/// thread that computes it.
struct ProductPart {
  std::int64_t expert = 0;
  int part = 0, parts = 1, thread = 0;
};

// Computes one part of the product of one expert's rows.
Status multiply(const ExpertProducts& experts, const Execution& execution, const ProductPart& place,
                const ExpertProduct& product) {
  const std::int64_t expert = place.expert;
  const Choices choices = choices_of(experts, execution, expert);
  if (choices.count == 0) return Status();
  const kernels::PackedMatrix matrix = product.weights.matrix(expert);
  kernels::PackedMatrix gate_matrix;
  ACCORD_ASSIGN_OR_RETURN(const RowsLayout layout, kernels::rows_layout(matrix, product.arithmetic, choices.count));
  kernels::ProductCall call;
  call.weights = &matrix;
  if (product.gate != nullptr) {
    gate_matrix = product.gate->matrix(expert);
    call.gate = &gate_matrix;
  }
  call.layout = &layout;
  call.x = prepared_rows(product.x, execution, choices.first);
  call.activation = product.activation;
  call.y = expert_rows(product.y, execution, choices.first);
  kernels::ProductShare share = kernels::full_share(call);
  if (share.last_panel < place.parts && choices.count > kRowGrain) {
    const PartRange rows = part_range(choices.count, kRowGrain, place.part, place.parts);
    share.first_row = rows.first;
    share.last_row = rows.last;
  } else {
    const PartRange panels = part_range(share.last_panel, 1, place.part, place.parts);
    share.first_panel = panels.first;
    share.last_panel = panels.last;
  }
  const std::span<std::byte> scratch(
      execution.data<std::byte>(experts.scratch) + place.thread * experts.scratch.size(1), kernels::kProductScratch);
  return kernels::product(call, share, scratch);
}

// Makes the inner values of one expert's rows from the results of its products.
void gate_values(const ExpertProducts& experts, const Execution& execution, std::int64_t expert,
                 const Choices& chosen) {
  const std::int64_t width = experts.inner.size(1);
  kernels::GateCall call{experts.options, chosen.count, width};
  if (experts.up_bias) call.up_bias = execution.data<const float>(*experts.up_bias) + expert * width;
  if (experts.gate_bias) call.gate_bias = execution.data<const float>(*experts.gate_bias) + expert * width;
  if (experts.gate_values) call.gate = execution.data<const float>(*experts.gate_values) + chosen.first * width;
  call.up = execution.data<float>(experts.inner) + chosen.first * width;
  kernels::gate_rows(call);
}

// Returns whether one thread computes the products sooner than several threads begin to.
bool is_small(const ExpertProducts& experts, std::int64_t choices) {
  constexpr std::int64_t kSmallProducts = 1 << 16;  // multiplications; some 10 us
  const std::int64_t up = experts.up->out() * experts.up->in(), down = experts.down->out() * experts.down->in();
  return choices * (up * (experts.gate == nullptr ? 1 : 2) + down) <= kSmallProducts;
}

// Computes this rank's experts for their rows. `token_of` maps a sorted row to its row of the input.
template <typename TokenOf>
Status run_products(const ExpertProducts& experts, const Execution& execution, const TokenOf& token_of) {
  const std::int64_t count = experts.up->count();
  const auto* const first = execution.data<const std::int64_t>(experts.first) + experts.first_expert;
  const bool small = is_small(experts, first[count] - first[0]);
  const auto run = [&](std::int64_t tasks, const auto& body) {
    if (!small) return pool_of(execution).run(static_cast<int>(tasks), body);
    for (int task = 0; task < tasks; ++task) ACCORD_RETURN_IF_ERROR(body(task, 0));
    return Status();
  };
  const int threads = experts.panel_parts;
  const int row_parts = small || count >= 2 * threads ? 1 : threads;
  const auto for_each_expert = [&](const auto& body) {  // several times for an expert, with some of its rows
    return run(count * row_parts, [&](int task, int /*thread*/) {
      const Choices chosen = choices_of(experts, execution, task / row_parts);
      const PartRange rows = part_range(chosen.count, kRowGrain, task % row_parts, row_parts);
      return rows.first == rows.last ? Status() : body(task / row_parts, chosen, rows);
    });
  };
  ACCORD_RETURN_IF_ERROR(for_each_expert([&](std::int64_t expert, const Choices& chosen, const PartRange& rows) {
    ACCORD_ASSIGN_OR_RETURN(const RowsLayout layout,
                            kernels::rows_layout(experts.up->matrix(expert), experts.up_arithmetic, chosen.count));
    std::byte* const memory = prepared_rows(experts.rows, execution, chosen.first);
    for (std::int64_t i = rows.first; i < rows.last; ++i) {
      const kernels::Rows row = expert_rows(experts.input, execution, token_of(chosen.first + i));
      kernels::prepare_row(layout, row.data, row.dtype, i, memory);
    }
    return Status();
  }));
  const auto run_product = [&](const ExpertProduct& product) {
    const int parts = small ? 1 : threads;
    return run(count * parts, [&](int at, int thread) {
      return multiply(experts, execution, {at / parts, at % parts, parts, thread}, product);
    });
  };
  ExpertProduct up{*experts.up,           nullptr,      kernels::Activation::kNone,
                   experts.up_arithmetic, experts.rows, experts.inner};
  if (experts.has_plain_gate) {
    up.gate = experts.gate;
    up.activation = experts.options.activation;
  } else if (experts.gate != nullptr) {
    ACCORD_RETURN_IF_ERROR(run_product({*experts.gate, nullptr, kernels::Activation::kNone, experts.up_arithmetic,
                                        experts.rows, *experts.gate_values}));
  }
  ACCORD_RETURN_IF_ERROR(run_product(up));
  ACCORD_RETURN_IF_ERROR(for_each_expert([&](std::int64_t expert, const Choices& chosen, const PartRange& rows) {
    if (!experts.has_plain_gate)
      gate_values(experts, execution, expert, {chosen.first + rows.first, rows.last - rows.first});
    ACCORD_ASSIGN_OR_RETURN(const RowsLayout layout,
                            kernels::rows_layout(experts.down->matrix(expert), experts.down_arithmetic, chosen.count));
    const kernels::Rows inner = expert_rows(experts.inner, execution, chosen.first);
    kernels::prepare_rows(layout, {inner.data, inner.dtype, inner.stride}, rows.first, rows.last,
                          prepared_rows(experts.inner_rows, execution, chosen.first));
    return Status();
  }));
  return run_product(
      {*experts.down, nullptr, kernels::Activation::kNone, experts.down_arithmetic, experts.inner_rows, experts.made});
}

// Adds up `rows` rows of the output.
Status add_up(const ExpertProducts& experts, const Execution& execution, kernels::CombineCall combine) {
  combine.width = experts.y.size(1);
  if (experts.weights) combine.weights = execution.data<const float>(*experts.weights);
  combine.x = execution.data<const float>(experts.made);
  combine.y = expert_rows(experts.y, execution, 0);
  const int parts = combine.rows < 16 ? 1 : pool_of(execution).threads();
  return pool_of(execution).run(parts, [&](int part) {
    const PartRange range = part_range(combine.rows, 1, part, parts);
    kernels::combine_experts(combine, range.first, range.last);
    return Status();
  });
}

// Rows and the experts chosen for them; this rank may have only some of these experts.
struct ChosenExperts {
  ExpertProducts experts;
  std::int64_t tokens = 0, top_k = 0;
  Tensor ids, order, place;  // as in ExpertGroups
  bool adds = false;         // to the values that y has
};

Status run_chosen(const ChosenExperts& chosen, const Node& node, const Execution& execution) {
  const ExpertProducts& experts = chosen.experts;
  const kernels::ExpertGroups groups{execution.data<std::int64_t>(experts.first),
                                     execution.data<std::int64_t>(chosen.order),
                                     execution.data<std::int64_t>(chosen.place)};
  const auto bad = kernels::group_by_expert(execution.address(chosen.ids), chosen.ids.dtype,
                                            chosen.tokens * chosen.top_k, experts.in_all, groups);
  if (bad) {
    return Status(StatusCode::kInvalidArgument, fmt::format("{}: expert {} at position {} is outside [0, {})",
                                                            node_text(node), bad->id, bad->position, experts.in_all));
  }
  const std::int64_t first = groups.first[experts.first_expert];
  const std::int64_t last = groups.first[experts.first_expert + experts.up->count()];
  if (chosen.adds && first == last) return Status();
  ACCORD_RETURN_IF_ERROR(
      run_products(experts, execution, [&](std::int64_t i) { return groups.order[i] / chosen.top_k; }));
  kernels::CombineCall combine;
  combine.rows = chosen.tokens;
  combine.top_k = chosen.top_k;
  combine.place = groups.place;
  combine.first_place = first;
  combine.last_place = last;
  combine.adds = chosen.adds;
  return add_up(experts, execution, combine);
}

// Computes rows that were dispatched to this rank. They are sorted, and each has one expert.
Status run_dispatched(const ExpertProducts& experts, const Execution& execution) {
  ACCORD_RETURN_IF_ERROR(run_products(experts, execution, [](std::int64_t i) { return i; }));
  kernels::CombineCall combine;
  combine.rows = execution.data<const std::int64_t>(experts.first)[experts.up->count()];
  combine.top_k = 1;
  return add_up(experts, execution, combine);
}

// Returns memory for the prepared rows of any grouping of `choices` rows.
Result<Tensor> rows_scratch(Preparation& op, const PackedStack& weights, Arithmetic arithmetic, std::int64_t choices) {
  ACCORD_ASSIGN_OR_RETURN(const RowsLayout one, kernels::rows_layout(weights.matrix(0), arithmetic, 1));
  return op.scratch(DType::kUInt8, {choices, static_cast<std::int64_t>(round_up(one.bytes(), 64))});
}

Status set_weights(const Preparation& op, const Experts& given, ExpertProducts& experts) {
  experts.up = given.up.packed;
  experts.down = given.down.packed;
  if (given.gate) experts.gate = given.gate->packed;
  if (experts.up == nullptr || experts.down == nullptr || (given.gate && experts.gate == nullptr)) {
    return op.unsupported("experts have a kernel only with weights of the package");
  }
  const bool gate_fits = experts.gate == nullptr || experts.gate->format() == experts.up->format();
  return gate_fits ? Status() : op.corrupt("the weights of its experts do not fit each other");
}

// Prepares everything for `choices` sorted rows of the call's input, except where the rows of each expert begin.
template <typename Call>
Result<ExpertProducts> products_of(Preparation& op, const Call& call, std::int64_t choices) {
  ExpertProducts experts;
  ACCORD_RETURN_IF_ERROR(set_weights(op, call.experts, experts));
  experts.options = call.experts.options;
  experts.up_bias = call.experts.up_bias;
  experts.gate_bias = call.experts.gate_bias;
  experts.has_plain_gate = call.experts.has_plain_gate();
  experts.input = call.input;
  experts.weights = call.weights;
  experts.y = call.y;
  const DType inner = call.input.dtype == DType::kBFloat16 ? DType::kBFloat16 : DType::kFloat32;
  experts.up_arithmetic = op.arithmetic(call.input.dtype, experts.up->format());
  experts.down_arithmetic = op.arithmetic(inner, experts.down->format());
  experts.in_all = experts.up->count();
  ACCORD_ASSIGN_OR_RETURN(experts.rows, rows_scratch(op, *experts.up, experts.up_arithmetic, choices));
  ACCORD_ASSIGN_OR_RETURN(experts.inner_rows, rows_scratch(op, *experts.down, experts.down_arithmetic, choices));
  const Sizes inner_sizes = {choices, experts.up->out()};
  ACCORD_ASSIGN_OR_RETURN(experts.inner, op.scratch(experts.has_plain_gate ? inner : DType::kFloat32, inner_sizes));
  if (!experts.has_plain_gate && experts.gate != nullptr) {
    ACCORD_ASSIGN_OR_RETURN(experts.gate_values, op.scratch(DType::kFloat32, inner_sizes));
  }
  ACCORD_ASSIGN_OR_RETURN(experts.made, op.scratch(DType::kFloat32, {choices, experts.down->out()}));
  const auto scratch = static_cast<std::int64_t>(kernels::kProductScratch);
  ACCORD_ASSIGN_OR_RETURN(experts.scratch, op.scratch(DType::kUInt8, {op.threads(), scratch}));
  experts.panel_parts = op.threads();
  return experts;
}

Status add_experts(Preparation& op, const ExpertsCall& call) {
  ChosenExperts chosen;
  const std::int64_t choices = call.ids.count();
  ACCORD_ASSIGN_OR_RETURN(chosen.experts, products_of(op, call, choices));
  ExpertProducts& experts = chosen.experts;
  experts.first_expert = call.first_expert;
  experts.in_all = call.experts_in_all;
  chosen.tokens = call.input.size(0);
  chosen.top_k = call.ids.size(1);
  chosen.ids = call.ids;
  chosen.adds = call.adds;
  ACCORD_ASSIGN_OR_RETURN(experts.first, op.scratch(DType::kInt64, {experts.in_all + 1}));
  ACCORD_ASSIGN_OR_RETURN(chosen.order, op.scratch(DType::kInt64, {choices}));
  ACCORD_ASSIGN_OR_RETURN(chosen.place, op.scratch(DType::kInt64, {choices}));
  op.step([chosen, node = &op.node()](const Execution& execution) { return run_chosen(chosen, *node, execution); });
  return Status();
}

Status add_dispatched_experts(Preparation& op, const DispatchedExpertsCall& call) {
  ACCORD_ASSIGN_OR_RETURN(ExpertProducts experts, products_of(op, call, call.input.size(0)));
  experts.first = call.first;
  op.step([experts](const Execution& execution) { return run_dispatched(experts, execution); });
  return Status();
}

}  // namespace

void set_expert_steps(StepTable& table) {
  table.set<ExpertsCall>(add_experts);
  table.set<DispatchedExpertsCall>(add_dispatched_experts);
}

}  // namespace accord::engine::host
