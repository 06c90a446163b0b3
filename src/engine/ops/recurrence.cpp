// Layers whose state is kept beside the cache of the running context. The rows of the batch belong to several
// sequences.
#include "engine/ops/recurrence.hpp"

#include <utility>

#include "engine/graph/ops.hpp"
#include "engine/ops/attention.hpp"
#include "engine/ops/float_arguments.hpp"
#include "engine/ops/op_registry.hpp"

namespace accord::engine {
namespace {

Result<Tensor> rows_argument(Preparation& op, std::string_view name, int dims) {
  ACCORD_ASSIGN_OR_RETURN(const Tensor tensor, op.tensor(name));
  if (tensor.dims() != dims) return op.corrupt("a tensor has another number of dimensions");
  return heads_of(op, tensor);
}

Status prepare_causal_convolution(Preparation& op) {
  CausalConvolutionCall call;
  ACCORD_ASSIGN_OR_RETURN(call.input, rows_argument(op, "input", 2));
  ACCORD_ASSIGN_OR_RETURN(const Tensor weight, op.tensor("weight"));
  const std::int64_t channels = call.input.size(1);
  const bool fits = weight.dims() == 2 && weight.size(0) == channels && weight.size(1) > 0;
  if (!fits) return op.corrupt("its weight does not fit its input");
  ACCORD_ASSIGN_OR_RETURN(call.weight, dense_float32(op, weight));
  ACCORD_ASSIGN_OR_RETURN(call.bias, dense_float32(op, "bias", {channels}));
  ACCORD_ASSIGN_OR_RETURN(call.state, op.integer("state"));
  ACCORD_RETURN_IF_ERROR(op.set_batch_rows(call.input.size(0)));
  ACCORD_ASSIGN_OR_RETURN(call.output, op.make(0, call.input.sizes()));
  op.run_always();
  return op.add(call);
}

Status prepare_linear_recurrence(Preparation& op) {
  LinearRecurrenceCall call;
  ACCORD_ASSIGN_OR_RETURN(call.query, rows_argument(op, "query", 3));
  ACCORD_ASSIGN_OR_RETURN(call.key, rows_argument(op, "key", 3));
  ACCORD_ASSIGN_OR_RETURN(call.value, rows_argument(op, "value", 3));
  ACCORD_ASSIGN_OR_RETURN(call.decay, rows_argument(op, "decay", 3));
  const std::int64_t rows = call.value.size(0), heads = call.value.size(1), key_heads = call.key.size(1);
  const bool fits = call.query.sizes() == call.key.sizes() && call.key.size(0) == rows && key_heads > 0 &&
                    heads % key_heads == 0 && call.decay.size(0) == rows && call.decay.size(1) == heads &&
                    (call.decay.size(2) == 1 || call.decay.size(2) == call.key.size(2));
  if (!fits) return op.corrupt("query, key, value and decay do not fit each other");
  if (op.has("beta")) {
    ACCORD_ASSIGN_OR_RETURN(call.beta, rows_argument(op, "beta", 3));
    if (call.beta->sizes() != Sizes{rows, heads, 1}) return op.corrupt("its beta does not fit its value");
  }
  ACCORD_ASSIGN_OR_RETURN(call.state, op.integer("state"));
  ACCORD_RETURN_IF_ERROR(op.set_batch_rows(rows));
  ACCORD_ASSIGN_OR_RETURN(call.output, op.make(0, call.value.sizes()));
  op.run_always();
  return op.add(call);
}

Status prepare_wkv(Preparation& op) {
  WkvCall call;
  ACCORD_ASSIGN_OR_RETURN(call.key, rows_argument(op, "key", 2));
  ACCORD_ASSIGN_OR_RETURN(call.value, rows_argument(op, "value", 2));
  if (call.key.sizes() != call.value.sizes()) return op.corrupt("key and value do not fit each other");
  for (const auto& [name, tensor] : {std::pair{"decay", &call.decay}, {"bonus", &call.bonus}}) {
    ACCORD_ASSIGN_OR_RETURN(const Tensor given, op.tensor(name));
    if (given.sizes() != Sizes{call.key.size(1)}) return op.corrupt("decay and bonus do not fit the key");
    ACCORD_ASSIGN_OR_RETURN(*tensor, dense_float32(op, given));
  }
  ACCORD_ASSIGN_OR_RETURN(call.state, op.integer("state"));
  ACCORD_RETURN_IF_ERROR(op.set_batch_rows(call.key.size(0)));
  ACCORD_ASSIGN_OR_RETURN(call.output, op.make(0, call.key.sizes()));
  op.run_always();
  return op.add(call);
}

constexpr OpEntry kRecurrenceOps[] = {
    {kCausalConvolution, prepare_causal_convolution},
    {kLinearRecurrence, prepare_linear_recurrence},
    {kWkv, prepare_wkv},
};

}  // namespace

std::span<const OpEntry> recurrence_ops() { return kRecurrenceOps; }

}  // namespace accord::engine
