// Attention over the cache of the running context, and rotary embedding. The rows of the batch belong to several
// sequences. The keys and values of a source are stored by one op of the encoder, and read by another one of the
// decoder.
#include "engine/graph/ops.hpp"
#include "engine/ops/attention.hpp"
#include "engine/ops/float_arguments.hpp"
#include "engine/ops/op_registry.hpp"

namespace accord::engine {
namespace {

Result<Tensor> heads_argument(Preparation& op, std::string_view name) {
  ACCORD_ASSIGN_OR_RETURN(const Tensor tensor, op.tensor(name));
  if (tensor.dims() != 4 || tensor.size(0) != 1) return op.corrupt("its tensors are not [1, heads, tokens, dim]");
  return heads_of(op, tensor);
}

constexpr int kTokensFirst[] = {0, 2, 1, 3};

Result<RotaryTables> tables_for(Preparation& op, const Tensor& x) {
  RotaryTables tables;
  ACCORD_ASSIGN_OR_RETURN(tables.cos, heads_argument(op, "cos"));
  ACCORD_ASSIGN_OR_RETURN(tables.sin, heads_argument(op, "sin"));
  const Sizes sizes = {1, 1, x.size(2), x.size(3)};
  const bool fits = tables.cos.sizes() == sizes && tables.sin.sizes() == sizes && x.size(3) % 2 == 0;
  if (!fits) return op.corrupt("its tables do not fit");
  return tables;
}

Result<std::optional<Tensor>> biases_argument(Preparation& op, std::int64_t heads) {
  if (!op.has("biases")) return std::optional<Tensor>();
  ACCORD_ASSIGN_OR_RETURN(const Tensor given, op.tensor("biases"));
  const std::int64_t distances = given.dims() == 2 ? given.size(1) : 0;
  if (distances < 1) return op.corrupt("its biases are not [heads, distances]");
  return dense_float32(op, "biases", {heads, distances});
}

Status prepare_cached_attention(Preparation& op) {
  CachedAttentionCall call;
  ACCORD_ASSIGN_OR_RETURN(call.q, heads_argument(op, "query"));
  ACCORD_ASSIGN_OR_RETURN(call.k, heads_argument(op, "key"));
  const Tensor &q = call.q, &k = call.k;
  bool fits =
      k.size(2) == q.size(2) && k.size(3) == q.size(3) && k.size(1) > 0 && q.size(1) > 0 && q.size(1) % k.size(1) == 0;
  if (op.is_tensor("value")) {
    ACCORD_ASSIGN_OR_RETURN(call.v, heads_argument(op, "value"));
    call.value_dim = call.v->size(3);
    fits = fits && call.v->size(2) == q.size(2) && call.v->size(1) == k.size(1);
  } else {
    ACCORD_ASSIGN_OR_RETURN(call.value_dim, op.integer("value_dim"));
    fits = fits && call.value_dim > 0 && call.value_dim <= k.size(3) && !op.has("cos");
  }
  if (!fits) return op.corrupt("query, key and value do not fit each other");
  if (op.has("cos")) {
    ACCORD_ASSIGN_OR_RETURN(call.rotary, tables_for(op, q));
  }
  ACCORD_ASSIGN_OR_RETURN(call.layer, op.integer("layer"));
  ACCORD_ASSIGN_OR_RETURN(const double scale, op.real("scale"));
  ACCORD_ASSIGN_OR_RETURN(call.window, op.integer("window", 0));
  ACCORD_ASSIGN_OR_RETURN(const double softcap, op.real("softcap", 0.0));
  ACCORD_ASSIGN_OR_RETURN(call.chunk, op.integer("chunk", 0));
  if (call.window < 0 || call.chunk < 0 || softcap < 0) return op.corrupt("a negative window, chunk or softcap");
  call.scale = static_cast<float>(scale);
  call.softcap = static_cast<float>(softcap);
  ACCORD_ASSIGN_OR_RETURN(call.sinks, dense_float32(op, "sinks", {q.size(1)}));
  ACCORD_ASSIGN_OR_RETURN(call.slopes, dense_float32(op, "slopes", {q.size(1)}));
  ACCORD_ASSIGN_OR_RETURN(call.biases, biases_argument(op, q.size(1)));
  ACCORD_RETURN_IF_ERROR(op.set_batch_rows(q.size(2)));
  ACCORD_ASSIGN_OR_RETURN(call.output, op.make(0, {1, q.size(2), q.size(1), call.value_dim}));
  ACCORD_RETURN_IF_ERROR(require_floats(op, call.output));
  op.run_always();
  return op.add(call);
}

Status prepare_cache_source(Preparation& op) {
  CacheSourceCall call;
  ACCORD_ASSIGN_OR_RETURN(call.k, heads_argument(op, "key"));
  ACCORD_ASSIGN_OR_RETURN(call.v, heads_argument(op, "value"));
  if (call.v.size(1) != call.k.size(1) || call.v.size(2) != call.k.size(2))
    return op.corrupt("key and value do not fit each other");
  ACCORD_ASSIGN_OR_RETURN(call.layer, op.integer("layer"));
  ACCORD_RETURN_IF_ERROR(op.set_batch_rows(call.k.size(2)));
  ACCORD_ASSIGN_OR_RETURN(call.output, op.make(0, {1}));
  op.run_always();
  return op.add(call);
}

Status prepare_cross_attention(Preparation& op) {
  CrossAttentionCall call;
  ACCORD_ASSIGN_OR_RETURN(call.q, heads_argument(op, "query"));
  ACCORD_ASSIGN_OR_RETURN(call.layer, op.integer("layer"));
  ACCORD_ASSIGN_OR_RETURN(const double scale, op.real("scale"));
  ACCORD_ASSIGN_OR_RETURN(call.value_dim, op.integer("value_dim"));
  if (call.q.size(1) < 1 || call.value_dim < 1) return op.corrupt("it has no heads, or values without elements");
  call.scale = static_cast<float>(scale);
  ACCORD_RETURN_IF_ERROR(op.set_batch_rows(call.q.size(2)));
  ACCORD_ASSIGN_OR_RETURN(call.output, op.make(0, {1, call.q.size(2), call.q.size(1), call.value_dim}));
  ACCORD_RETURN_IF_ERROR(require_floats(op, call.output));
  op.run_always();
  return op.add(call);
}

Status prepare_rotary(Preparation& op) {
  RotaryCall call;
  ACCORD_ASSIGN_OR_RETURN(call.x, heads_argument(op, "input"));
  ACCORD_ASSIGN_OR_RETURN(call.tables, tables_for(op, call.x));
  ACCORD_ASSIGN_OR_RETURN(call.y, op.make_ordered(0, call.x.sizes(), kTokensFirst));
  ACCORD_RETURN_IF_ERROR(require_floats(op, call.y));
  if (op.is_canonical()) op.run_always();
  return op.add(call);
}

constexpr OpEntry kCachedAttentionOps[] = {
    {kCachedAttention, prepare_cached_attention},
    {kCacheSource, prepare_cache_source},
    {kCrossAttention, prepare_cross_attention},
    {"accord.rotary", prepare_rotary},
};

}  // namespace

Result<Tensor> rotary_scratch(Preparation& op, const Tensor& x) {
  ACCORD_ASSIGN_OR_RETURN(Tensor tensor, op.scratch(x.dtype, {1, x.size(2), x.size(1), x.size(3)}));
  tensor.layout = kernels::permuted_layout(tensor.layout, kTokensFirst);
  return tensor;
}

std::span<const OpEntry> cached_attention_ops() { return kCachedAttentionOps; }

}  // namespace accord::engine
