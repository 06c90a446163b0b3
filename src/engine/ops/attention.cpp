// Attention as one op, not decomposed. Inputs are read with the strides of their views. The output's memory is laid
// out as [batch, length, heads, dim], so that the transpose and view that usually follow are free.
#include "engine/ops/attention.hpp"

#include <cmath>

#include "engine/ops/op_registry.hpp"

namespace accord::engine {

Status require_floats(const Preparation& op, const Tensor& tensor) {
  return op.require(tensor, {DType::kFloat32, DType::kBFloat16, DType::kFloat16});
}

Result<Tensor> heads_of(Preparation& op, const Tensor& tensor) {
  ACCORD_RETURN_IF_ERROR(require_floats(op, tensor));
  const int last = tensor.dims() - 1;
  if (tensor.size(last) != 1 && tensor.stride(last) != 1) return op.contiguous(tensor);
  return tensor;
}

namespace {

// [heads, length, dim] counts as a batch of one.
Result<Tensor> with_batch(Preparation& op, Tensor tensor) {
  if (tensor.dims() == 3) {
    const Sizes sizes = {1, tensor.size(0), tensor.size(1), tensor.size(2)};
    const Sizes strides = {0, tensor.stride(0), tensor.stride(1), tensor.stride(2)};
    tensor.layout = kernels::strided_layout(sizes, strides);
  }
  if (tensor.dims() != 4) return op.unsupported("attention has a kernel for 3 or 4 dimensions");
  return heads_of(op, tensor);
}

Status check_sizes(const Preparation& op, const AttentionCall& call) {
  const Tensor &q = call.q, &k = call.k, &v = call.v;
  const std::int64_t heads = q.size(1), kv_heads = k.size(1);
  const bool fits = k.size(0) == q.size(0) && v.size(0) == q.size(0) && v.size(1) == kv_heads &&
                    v.size(2) == k.size(2) && k.size(3) == q.size(3) && kv_heads > 0 && heads > 0 &&
                    heads % kv_heads == 0;
  if (!fits) return op.corrupt("query, key and value do not fit each other");
  ACCORD_ASSIGN_OR_RETURN(const bool grouped, op.flag("enable_gqa", false));
  if (heads != kv_heads && !grouped) return op.corrupt("fewer key heads than query heads without enable_gqa");
  return Status();
}

Status set_mask(Preparation& op, AttentionCall& call) {
  ACCORD_ASSIGN_OR_RETURN(call.mask, op.maybe_tensor("attn_mask"));
  if (!call.mask) return Status();
  ACCORD_RETURN_IF_ERROR(op.require(*call.mask, {DType::kFloat32, DType::kBFloat16, DType::kFloat16, DType::kBool}));
  const Sizes scores = {call.q.size(0), call.q.size(1), call.q.size(2), call.k.size(2)};
  ACCORD_ASSIGN_OR_RETURN(call.mask->layout, kernels::broadcast_layout(call.mask->layout, scores));
  return Status();
}

Status prepare_attention(Preparation& op) {
  AttentionCall call;
  ACCORD_ASSIGN_OR_RETURN(const Tensor query, op.tensor("query"));
  ACCORD_ASSIGN_OR_RETURN(const Tensor key, op.tensor("key"));
  ACCORD_ASSIGN_OR_RETURN(const Tensor value, op.tensor("value"));
  ACCORD_ASSIGN_OR_RETURN(call.q, with_batch(op, query));
  ACCORD_ASSIGN_OR_RETURN(call.k, with_batch(op, key));
  ACCORD_ASSIGN_OR_RETURN(call.v, with_batch(op, value));
  ACCORD_RETURN_IF_ERROR(check_sizes(op, call));
  ACCORD_ASSIGN_OR_RETURN(const double dropout, op.real("dropout_p", 0.0));
  if (dropout != 0.0) return op.unsupported("dropout; export the model in eval mode");
  ACCORD_ASSIGN_OR_RETURN(call.is_causal, op.flag("is_causal", false));
  ACCORD_ASSIGN_OR_RETURN(const double scale, op.real("scale", 1.0 / std::sqrt(static_cast<double>(call.q.size(3)))));
  call.scale = static_cast<float>(scale);
  ACCORD_RETURN_IF_ERROR(set_mask(op, call));

  const Sizes sizes = {call.q.size(0), call.q.size(1), call.q.size(2), call.v.size(3)};
  static constexpr int kBatchLengthHeadsDim[] = {0, 2, 1, 3};
  if (query.dims() == 4) {
    ACCORD_ASSIGN_OR_RETURN(call.output, op.make_ordered(0, sizes, kBatchLengthHeadsDim));
  } else {
    ACCORD_ASSIGN_OR_RETURN(call.output, op.make(0, {sizes[1], sizes[2], sizes[3]}));
    call.output.layout = kernels::contiguous_layout(sizes);
  }
  ACCORD_RETURN_IF_ERROR(require_floats(op, call.output));
  if (op.is_canonical()) op.run_always();
  return op.add(call);
}

constexpr OpEntry kAttentionOps[] = {
    {"aten.scaled_dot_product_attention.default", prepare_attention},
};

}  // namespace

std::span<const OpEntry> attention_ops() { return kAttentionOps; }

}  // namespace accord::engine
