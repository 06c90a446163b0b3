// Norms of the rows of the last dimension. A norm that follows a sum over the ranks is one step with it.
#include "engine/ops/norm.hpp"

#include "engine/ops/op_registry.hpp"

namespace accord::engine {
namespace {

// PyTorch's defaults. The one of rms_norm is the machine epsilon of float32.
constexpr double kLayerNormEps = 1e-5;
constexpr double kRmsNormEps = 1.1920928955078125e-07;

// Makes the node see 16-bit floats as float32, unless the named tensors and the outputs all have one dtype.
Status widen_unless_one_dtype(Preparation& op, std::initializer_list<std::string_view> names) {
  const DType dtype = op.declared_dtype();
  bool one = true;
  for (const std::string_view name : names) {
    ACCORD_ASSIGN_OR_RETURN(const std::optional<Tensor> tensor, op.maybe_tensor(name));
    one = one && (!tensor || tensor->dtype == dtype);
  }
  for (std::size_t output = 0; output < op.outputs(); ++output) one = one && op.declared_dtype(output) == dtype;
  if (!one) op.widen();
  return Status();
}

// Reads the weights for rows like `input`.
Result<NormWeights> norm_weights(Preparation& op, NormKind kind, const Tensor& input) {
  ACCORD_ASSIGN_OR_RETURN(const Sizes normalized, op.integers("normalized_shape"));
  if (normalized.size() != 1 || input.dims() == 0 || input.size(input.dims() - 1) != normalized[0]) {
    return op.unsupported("only norms over the last dimension have a kernel");
  }
  NormWeights weights;
  ACCORD_ASSIGN_OR_RETURN(weights.weight, op.maybe_tensor("weight"));
  ACCORD_ASSIGN_OR_RETURN(weights.bias, op.maybe_tensor("bias"));
  ACCORD_ASSIGN_OR_RETURN(weights.addend, op.maybe_tensor("addend"));
  ACCORD_ASSIGN_OR_RETURN(const double eps, op.real("eps", kind == NormKind::kLayer ? kLayerNormEps : kRmsNormEps));
  weights.eps = static_cast<float>(eps);
  for (auto* tensor : {&weights.weight, &weights.bias, &weights.addend}) {
    if (!*tensor) continue;
    ACCORD_RETURN_IF_ERROR(op.require(**tensor, {input.dtype}));
    if ((*tensor)->sizes() != normalized) return op.corrupt("its weight or bias does not have the normalized shape");
    ACCORD_ASSIGN_OR_RETURN(*tensor, op.contiguous(**tensor));
  }
  return weights;
}

Status prepare_norm(Preparation& op, NormKind kind) {
  ACCORD_RETURN_IF_ERROR(widen_unless_one_dtype(op, {"input", "weight", "bias", "addend"}));
  ACCORD_ASSIGN_OR_RETURN(const Tensor input, op.tensor("input"));
  NormCall norm;
  norm.kind = kind;
  ACCORD_ASSIGN_OR_RETURN(norm.weights, norm_weights(op, kind, input));
  ACCORD_ASSIGN_OR_RETURN(norm.x, rows_of(op, input));
  ACCORD_ASSIGN_OR_RETURN(norm.y, op.make_in_place(0, input.sizes(), {norm.x.tensor}));
  return op.add(norm);
}

Status prepare_layer_norm(Preparation& op) { return prepare_norm(op, NormKind::kLayer); }
Status prepare_rms_norm(Preparation& op) { return prepare_norm(op, NormKind::kRms); }

Status prepare_add_norm(Preparation& op, NormKind kind) {
  ACCORD_RETURN_IF_ERROR(widen_unless_one_dtype(op, {"self", "residual", "weight", "bias", "addend"}));
  ACCORD_ASSIGN_OR_RETURN(const Tensor self, op.tensor("self"));
  ACCORD_ASSIGN_OR_RETURN(const Tensor residual, op.tensor("residual"));
  if (self.sizes() != residual.sizes()) return op.corrupt("its two inputs differ in sizes");
  NormCall norm;
  norm.kind = kind;
  ACCORD_ASSIGN_OR_RETURN(norm.weights, norm_weights(op, kind, self));
  ACCORD_ASSIGN_OR_RETURN(norm.x, rows_of(op, self));
  ACCORD_ASSIGN_OR_RETURN(norm.residual, rows_of(op, residual));
  if (op.output_used(1)) {
    // The kernel may write the sum over an input, but then y needs memory of its own.
    ACCORD_ASSIGN_OR_RETURN(norm.sum, op.make_in_place(1, self.sizes(), {norm.x.tensor, norm.residual->tensor}));
    ACCORD_ASSIGN_OR_RETURN(norm.y, op.make(0, self.sizes()));
  } else {
    ACCORD_ASSIGN_OR_RETURN(norm.y, op.make_in_place(0, self.sizes(), {norm.x.tensor, norm.residual->tensor}));
  }
  return op.add(norm);
}

Status prepare_add_layer_norm(Preparation& op) { return prepare_add_norm(op, NormKind::kLayer); }
Status prepare_add_rms_norm(Preparation& op) { return prepare_add_norm(op, NormKind::kRms); }

// norm(sum of self over the ranks [+ addend] [+ residual]). The sum is written where the norm reads it: over the
// partial sums, unless they are needed elsewhere.
Status prepare_all_reduce_norm(Preparation& op, NormKind kind) {
  ACCORD_ASSIGN_OR_RETURN(const std::optional<int> group, op.group("group"));
  if (!group) return op.has("residual") ? prepare_add_norm(op, kind) : prepare_norm(op, kind);
  const std::string_view input = op.has("residual") ? "self" : "input";
  ACCORD_RETURN_IF_ERROR(widen_unless_one_dtype(op, {input, "residual", "weight", "bias", "addend"}));
  ACCORD_ASSIGN_OR_RETURN(const Tensor given, op.tensor(input));
  ACCORD_ASSIGN_OR_RETURN(const std::optional<Tensor> residual, op.maybe_tensor("residual"));
  NormCall norm;
  norm.kind = kind;
  ACCORD_ASSIGN_OR_RETURN(norm.weights, norm_weights(op, kind, given));
  ACCORD_ASSIGN_OR_RETURN(const Tensor partial, op.contiguous(given));
  if (residual) {
    if (residual->sizes() != given.sizes()) return op.corrupt("its two inputs differ in sizes");
    ACCORD_ASSIGN_OR_RETURN(norm.residual, rows_of(op, *residual));
  }
  // The sum overwrites this rank's partial sum, unless that is also the residual.
  const bool in_place = !residual || residual->storage != partial.storage;
  const auto make_sum = [&](std::size_t output) {
    return in_place ? op.make_in_place(output, given.sizes(), {partial}) : op.make(output, given.sizes());
  };
  Tensor reduced;
  if (op.output_used(1)) {
    ACCORD_ASSIGN_OR_RETURN(norm.sum, make_sum(1));
    ACCORD_ASSIGN_OR_RETURN(norm.y, op.make(0, given.sizes()));
    reduced = *norm.sum;
  } else {
    ACCORD_ASSIGN_OR_RETURN(norm.y, make_sum(0));
    reduced = norm.y;
  }
  ACCORD_ASSIGN_OR_RETURN(norm.x, rows_of(op, reduced));
  op.run_always();
  const AllReduce sum{.group = *group, .input = partial, .output = reduced};
  ACCORD_ASSIGN_OR_RETURN(const bool in_codes, is_in_codes(op, sum));
  // Canonical: a kernel that adds the ranks up as well would sum a row in another order than the norm's own.
  if (!in_codes && !op.is_canonical()) return op.add(AllReduceNormCall{sum, norm});
  ACCORD_ASSIGN_OR_RETURN(const Step run_sum, all_reduce_step(op, sum));
  ACCORD_ASSIGN_OR_RETURN(const Step run_norm, op.step_of(norm));
  op.step([run_sum, run_norm](const Execution& execution) {
    ACCORD_RETURN_IF_ERROR(run_sum(execution));
    return run_norm(execution);
  });
  return Status();
}

Status prepare_all_reduce_layer_norm(Preparation& op) { return prepare_all_reduce_norm(op, NormKind::kLayer); }
Status prepare_all_reduce_rms_norm(Preparation& op) { return prepare_all_reduce_norm(op, NormKind::kRms); }

constexpr OpEntry kNormOps[] = {
    {"aten.layer_norm.default", prepare_layer_norm},
    {"aten.rms_norm.default", prepare_rms_norm},
    {"accord.rms_norm", prepare_rms_norm},
    {"accord.add_layer_norm", prepare_add_layer_norm},
    {"accord.add_rms_norm", prepare_add_rms_norm},
    {"accord.all_reduce_layer_norm", prepare_all_reduce_layer_norm},
    {"accord.all_reduce_rms_norm", prepare_all_reduce_rms_norm},
    {"accord.all_reduce_add_layer_norm", prepare_all_reduce_layer_norm},
    {"accord.all_reduce_add_rms_norm", prepare_all_reduce_rms_norm},
};

}  // namespace

std::span<const OpEntry> norm_ops() { return kNormOps; }

}  // namespace accord::engine
