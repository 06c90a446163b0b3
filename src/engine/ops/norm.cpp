// Norms: rows of the last dimension, divided among threads. A norm that follows a sum over the ranks is one step with
// it, so that one call computes the end of a row-parallel layer while its rows are still in the first-level cache.
#include "engine/gpu/norm_steps.hpp"
#include "engine/ops/all_reduce_step.hpp"
#include "engine/host/norm_steps.hpp"
#include "engine/ops/op_registry.hpp"

namespace accord::engine {
namespace {

void add_norm(Preparation& op, const Norm& norm) {
  Step step = [norm](const Execution& execution) { return run_norm(norm, execution); };
  op.step(step, [&] { return step; });
}

Status prepare_norm(Preparation& op, NormKind kind) {
  ACCORD_RETURN_IF_ERROR(see_one_dtype(op, {"input", "weight", "bias", "addend"}));
  ACCORD_ASSIGN_OR_RETURN(const Tensor input, op.tensor("input"));
  Norm norm;
  norm.kind = kind;
  ACCORD_ASSIGN_OR_RETURN(norm.weights, norm_weights(op, kind, input));
  ACCORD_ASSIGN_OR_RETURN(norm.x, rows_of(op, input));
  ACCORD_ASSIGN_OR_RETURN(norm.y, op.make_over(0, input.sizes(), {norm.x.tensor}));
  add_norm(op, norm);
  return Status();
}

Status prepare_layer_norm(Preparation& op) { return prepare_norm(op, NormKind::kLayer); }
Status prepare_rms_norm(Preparation& op) { return prepare_norm(op, NormKind::kRms); }

Status prepare_add_norm(Preparation& op, NormKind kind) {
  ACCORD_RETURN_IF_ERROR(see_one_dtype(op, {"self", "residual", "weight", "bias", "addend"}));
  ACCORD_ASSIGN_OR_RETURN(const Tensor self, op.tensor("self"));
  ACCORD_ASSIGN_OR_RETURN(const Tensor residual, op.tensor("residual"));
  if (self.sizes() != residual.sizes()) return op.corrupt("its two inputs differ in sizes");
  Norm norm;
  norm.kind = kind;
  ACCORD_ASSIGN_OR_RETURN(norm.weights, norm_weights(op, kind, self));
  ACCORD_ASSIGN_OR_RETURN(norm.x, rows_of(op, self));
  ACCORD_ASSIGN_OR_RETURN(norm.residual, rows_of(op, residual));
  if (op.output_used(1)) {
    // The kernel may write the sum over an input, but then y needs memory of its own.
    ACCORD_ASSIGN_OR_RETURN(norm.sum, op.make_over(1, self.sizes(), {norm.x.tensor, norm.residual->tensor}));
    ACCORD_ASSIGN_OR_RETURN(norm.y, op.make(0, self.sizes()));
  } else {
    ACCORD_ASSIGN_OR_RETURN(norm.y, op.make_over(0, self.sizes(), {norm.x.tensor, norm.residual->tensor}));
  }
  add_norm(op, norm);
  return Status();
}

Status prepare_add_layer_norm(Preparation& op) { return prepare_add_norm(op, NormKind::kLayer); }
Status prepare_add_rms_norm(Preparation& op) { return prepare_add_norm(op, NormKind::kRms); }

// norm(sum of self over the ranks [+ addend] [+ residual]). The sum is written where the norm reads it: over the
// partial sums, unless they are needed elsewhere.
Status prepare_all_reduce_norm(Preparation& op, NormKind kind) {
  ACCORD_ASSIGN_OR_RETURN(const std::optional<int> group, op.group("group"));
  if (!group) return op.has("residual") ? prepare_add_norm(op, kind) : prepare_norm(op, kind);
  const std::string_view input = op.has("residual") ? "self" : "input";
  ACCORD_RETURN_IF_ERROR(see_one_dtype(op, {input, "residual", "weight", "bias", "addend"}));
  ACCORD_ASSIGN_OR_RETURN(const Tensor given, op.tensor(input));
  ACCORD_ASSIGN_OR_RETURN(const std::optional<Tensor> residual, op.maybe_tensor("residual"));
  Norm norm;
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
    return in_place ? op.make_over(output, given.sizes(), {partial}) : op.make(output, given.sizes());
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
  ACCORD_ASSIGN_OR_RETURN(const AllReduce sum,
                          prepare_step(op, {.group = *group, .input = partial, .output = reduced}));
  Step step = [norm, sum](const Execution& execution) {
    if (execution.on_device != nullptr) return run_sum_and_norm_on_device(sum, norm, execution);
    ACCORD_RETURN_IF_ERROR(run_step(sum, execution));
    return run_norm(norm, execution);
  };
  op.step_always(step, [&] { return step; });
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
