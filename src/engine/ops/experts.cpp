// Mixtures of experts, the choice of experts, and adapters. If the ranks share the experts, a rank has only some of
// them: either it skips the choices of other experts, or its rows have arrived from all ranks already sorted and its
// results are sent back.
#include "engine/ops/experts.hpp"

#include "engine/ops/float_arguments.hpp"
#include "engine/ops/op_registry.hpp"
#include "engine/ops/rows.hpp"
#include "engine/program/calls.hpp"

namespace accord::engine {
namespace {

using kernels::Activation;

constexpr std::initializer_list<DType> kExpertRowTypes = {DType::kFloat32, DType::kBFloat16, DType::kFloat16};

Result<ExpertWeights> expert_weights(Preparation& op, std::string_view name) {
  ACCORD_ASSIGN_OR_RETURN(const Tensor tensor, op.tensor(name));
  return ExpertWeights{tensor, op.packed_experts(name)};
}

Result<kernels::GateOptions> gate_options(Preparation& op) {
  static constexpr Activation kKinds[] = {Activation::kSilu, Activation::kGeluErf, Activation::kGeluTanh,
                                          Activation::kRelu, Activation::kTanh,    Activation::kReluSquared,
                                          Activation::kNone};
  ACCORD_ASSIGN_OR_RETURN(
      const int kind, op.choice("activation", {"silu", "gelu", "gelu_tanh", "relu", "tanh", "relu_squared", "none"}));
  ACCORD_ASSIGN_OR_RETURN(const double limit, op.real("limit", 0.0));
  ACCORD_ASSIGN_OR_RETURN(const double alpha, op.real("alpha", 1.0));
  ACCORD_ASSIGN_OR_RETURN(const double offset, op.real("offset", 0.0));
  if (limit < 0.0 || alpha == 0.0) return op.corrupt("a negative limit, or alpha is 0");
  return kernels::GateOptions{kKinds[kind], static_cast<float>(limit), static_cast<float>(alpha),
                              static_cast<float>(offset)};
}

// Returns this rank's experts, for rows of `input`.
Result<Experts> experts_for(Preparation& op, const Tensor& input) {
  Experts experts;
  ACCORD_ASSIGN_OR_RETURN(experts.up, expert_weights(op, "up"));
  if (op.has("gate")) {
    ACCORD_ASSIGN_OR_RETURN(experts.gate, expert_weights(op, "gate"));
  }
  ACCORD_ASSIGN_OR_RETURN(experts.down, expert_weights(op, "down"));
  ACCORD_ASSIGN_OR_RETURN(experts.options, gate_options(op));
  const Tensor &up = experts.up.tensor, &down = experts.down.tensor;
  if (up.dims() != 3 || down.dims() != 3 || up.size(0) == 0 || up.size(0) != down.size(0) ||
      up.size(1) != down.size(2) || (experts.gate && experts.gate->tensor.sizes() != up.sizes())) {
    return op.corrupt("the weights of its experts do not fit each other");
  }
  if (experts.gate && experts.gate->tensor.dtype != up.dtype)
    return op.unsupported("the gates of its experts have a different dtype than the weights that they gate");
  const Sizes sizes = {up.size(0), up.size(1)};
  ACCORD_ASSIGN_OR_RETURN(experts.up_bias, dense_float32(op, "up_bias", sizes));
  ACCORD_ASSIGN_OR_RETURN(experts.gate_bias, dense_float32(op, "gate_bias", sizes));
  ACCORD_RETURN_IF_ERROR(op.require(input, kExpertRowTypes));
  if (input.dims() != 2 || input.size(1) != up.size(2))
    return op.corrupt("the width of its rows differs from that of its experts");
  return experts;
}

Result<Tensor> make_results(Preparation& op, const Tensor& input, const Experts& experts) {
  ACCORD_ASSIGN_OR_RETURN(const Tensor y, op.make(0, {input.size(0), experts.down.tensor.size(1)}));
  ACCORD_RETURN_IF_ERROR(op.require(y, kExpertRowTypes));
  return y;
}

Status prepare_experts(Preparation& op) {
  ExpertsCall call;
  ACCORD_ASSIGN_OR_RETURN(const Tensor input, op.tensor("input"));
  ACCORD_ASSIGN_OR_RETURN(const Tensor ids, op.tensor("experts"));
  ACCORD_ASSIGN_OR_RETURN(const Tensor weights, op.tensor("weights"));
  ACCORD_RETURN_IF_ERROR(op.require(ids, {DType::kInt32, DType::kInt64}));
  if (input.dims() != 2 || ids.dims() != 2 || ids.size(0) != input.size(0) || weights.sizes() != ids.sizes()) {
    return op.corrupt("its rows, their experts and their weights do not fit");
  }
  ACCORD_ASSIGN_OR_RETURN(call.experts, experts_for(op, input));
  const std::int64_t experts = call.experts.up.tensor.size(0);
  ACCORD_ASSIGN_OR_RETURN(call.first_expert, op.integer("first_expert", 0));
  ACCORD_ASSIGN_OR_RETURN(call.experts_in_all, op.integer("experts_in_all", experts));
  if (call.first_expert < 0 || call.first_expert > call.experts_in_all - experts)
    return op.corrupt("its experts are outside the range of the experts of all ranks");
  ACCORD_ASSIGN_OR_RETURN(call.input, op.contiguous(input));
  ACCORD_ASSIGN_OR_RETURN(call.ids, op.contiguous(ids));
  ACCORD_ASSIGN_OR_RETURN(call.weights, dense_float32(op, weights));
  ACCORD_ASSIGN_OR_RETURN(call.y, make_results(op, input, call.experts));
  op.run_always();
  return op.add(call);
}

// Returns the matrices of a layer's adapters: `down` [adapters, rank, in] and `up` [adapters, out, rank].
Result<Experts> adapter_matrices(Preparation& op, std::int64_t in, std::int64_t out) {
  Experts adapters;
  ACCORD_ASSIGN_OR_RETURN(adapters.up, expert_weights(op, "down"));
  ACCORD_ASSIGN_OR_RETURN(adapters.down, expert_weights(op, "up"));
  adapters.options.activation = Activation::kNone;
  const Tensor &down = adapters.up.tensor, &up = adapters.down.tensor;
  const bool fit = down.dims() == 3 && up.dims() == 3 && down.size(0) > 0 && up.size(0) == down.size(0) &&
                   up.size(2) == down.size(1) && up.size(1) == out && down.size(2) == in;
  return fit ? Result<Experts>(adapters) : op.corrupt("its adapters do not fit its layer");
}

// base + for each row the product with its adapter, up * down * input. Adapters are counted from 1; a row without one
// has 0. To their kernels adapters are experts, of which the first is another rank's.
Status prepare_adapters(Preparation& op) {
  ACCORD_ASSIGN_OR_RETURN(const Tensor base, op.tensor("base"));
  ACCORD_ASSIGN_OR_RETURN(const Tensor input, op.tensor("input"));
  ACCORD_ASSIGN_OR_RETURN(const Tensor ids, op.tensor("adapters"));
  for (const Tensor* const tensor : {&base, &input}) ACCORD_RETURN_IF_ERROR(op.require(*tensor, kExpertRowTypes));
  ACCORD_RETURN_IF_ERROR(op.require(ids, {DType::kInt64}));
  if (base.dims() == 0 || input.dims() == 0) return op.corrupt("its input and its base are not rows");
  const std::int64_t in = input.sizes().back(), out = base.sizes().back(), rows = ids.count();
  if (ids.dims() != 1 || input.count() != rows * in || base.count() != rows * out)
    return op.corrupt("its rows and their adapters do not fit");
  ExpertsCall call;
  ACCORD_ASSIGN_OR_RETURN(call.experts, adapter_matrices(op, in, out));
  ACCORD_ASSIGN_OR_RETURN(call.y, op.make_in_place(0, base.sizes(), {base}));
  if (call.y.storage != base.storage) ACCORD_RETURN_IF_ERROR(op.add(ConvertCall{base, call.y}));
  ACCORD_ASSIGN_OR_RETURN(call.input, op.contiguous(input));
  ACCORD_ASSIGN_OR_RETURN(call.ids, op.contiguous(ids));
  const auto as_matrix = [&](Tensor& tensor, std::int64_t width) {
    const Sizes sizes = {rows, width};
    tensor.layout = kernels::contiguous_layout(sizes);
  };
  as_matrix(call.input, in);
  as_matrix(call.ids, 1);
  as_matrix(call.y, out);
  call.first_expert = 1;
  call.experts_in_all = call.experts.up.tensor.size(0) + 1;
  call.adds = true;
  return op.add(call);
}

Status prepare_dispatched_experts(Preparation& op) {
  DispatchedExpertsCall call;
  ACCORD_ASSIGN_OR_RETURN(const Tensor input, op.tensor("input"));
  ACCORD_ASSIGN_OR_RETURN(const Tensor weights, op.tensor("weights"));
  ACCORD_ASSIGN_OR_RETURN(const Tensor first, op.tensor("experts"));
  ACCORD_ASSIGN_OR_RETURN(call.experts, experts_for(op, input));
  ACCORD_RETURN_IF_ERROR(op.require(first, {DType::kInt64}));
  if (weights.count() != input.size(0) || first.count() != call.experts.up.tensor.size(0) + 1)
    return op.corrupt("its rows, their experts and their weights do not fit");
  ACCORD_ASSIGN_OR_RETURN(call.input, op.contiguous(input));
  ACCORD_ASSIGN_OR_RETURN(call.weights, dense_float32(op, weights));
  ACCORD_ASSIGN_OR_RETURN(call.first, op.contiguous(first));
  ACCORD_ASSIGN_OR_RETURN(call.y, make_results(op, input, call.experts));
  op.run_always();
  return op.add(call);
}

// Along the last dimension. 16-bit floats are compared in float32.
Status prepare_top_k(Preparation& op) {
  ACCORD_ASSIGN_OR_RETURN(const Tensor self, op.tensor("self"));
  if (self.dims() == 0) return op.unsupported("top-k has no kernel for a scalar");
  ACCORD_ASSIGN_OR_RETURN(const int dim, op.dimension("dim", self.dims(), -1));
  if (op.outputs() != 2) return op.corrupt("it does not have two outputs");
  if (dim + 1 != self.dims()) return op.unsupported("top-k has a kernel only along the last dimension");
  ACCORD_ASSIGN_OR_RETURN(Tensor x, op.converted(self, kernels::is_real(self.dtype) ? DType::kFloat32 : self.dtype));
  if (!kernels::can_take_top_k(x.dtype)) {
    return op.unsupported("top-k has no kernel for " + std::string(to_string(x.dtype)));
  }
  if (!as_rows(x.layout)) {
    ACCORD_ASSIGN_OR_RETURN(x, op.contiguous(x));
  }
  const Rows rows = *as_rows(x.layout);
  ACCORD_ASSIGN_OR_RETURN(const std::int64_t k, op.integer("k"));
  if (k < 0 || k > self.size(dim)) return op.corrupt("k is larger than the dimension");
  ACCORD_ASSIGN_OR_RETURN(const bool largest, op.flag("largest", true));
  Sizes sizes = self.sizes();
  sizes.back() = k;
  ACCORD_ASSIGN_OR_RETURN(const Tensor values, op.scratch(x.dtype, sizes));
  ACCORD_ASSIGN_OR_RETURN(const Tensor indices, op.make(1, sizes));
  ACCORD_RETURN_IF_ERROR(op.require(indices, {DType::kInt64}));
  const kernels::Extreme extreme = largest ? kernels::Extreme::kLargest : kernels::Extreme::kSmallest;
  ACCORD_RETURN_IF_ERROR(op.add(TopKCall{extreme, x, rows, k, values, indices}));
  ACCORD_ASSIGN_OR_RETURN(const Tensor rounded, op.converted(values, op.declared_dtype(0)));
  op.alias(0, rounded);
  return Status();
}

constexpr OpEntry kExpertsOps[] = {
    {"accord.adapters", prepare_adapters}, {"accord.dispatched_experts", prepare_dispatched_experts},
    {"accord.experts", prepare_experts},   {"accord.experts.default", prepare_experts},
    {"aten.topk.default", prepare_top_k},
};

}  // namespace

std::span<const OpEntry> expert_ops() { return kExpertsOps; }

}  // namespace accord::engine
