// Attention as one op, not decomposed. Inputs are read with the strides of their views. The output's memory is laid
// out as [batch, length, heads, dim], so that the transpose and view that usually follow are free. Heads are divided
// among threads.
#include <cmath>

#include "engine/ops/op_registry.hpp"
#include "kernels/attention.hpp"

namespace accord::engine {
namespace {

using kernels::AttentionCall;

/// Everything but addresses.
struct Attention {
  Tensor q, k, v;
  std::optional<Tensor> mask;
  Tensor output;
  Tensor scratch;  // one piece per thread
  AttentionCall call;
};

// Treats [heads, length, dim] as a batch of one.
Result<Tensor> with_batch(Preparation& op, Tensor tensor) {
  ACCORD_RETURN_IF_ERROR(op.require(tensor, {DType::kFloat32}));
  if (tensor.dims() == 3) {
    Sizes sizes = tensor.sizes();
    Sizes strides(tensor.layout.strides.begin(), tensor.layout.strides.begin() + 3);
    sizes.insert(sizes.begin(), 1);
    strides.insert(strides.begin(), 0);
    tensor.layout = kernels::strided_layout(sizes, strides);
  }
  if (tensor.dims() != 4) return op.unsupported("attention has a kernel for 3 or 4 dimensions");
  if (tensor.size(3) != 1 && tensor.stride(3) != 1) return op.contiguous(tensor);
  return tensor;
}

kernels::ConstHeads heads_of(const Tensor& tensor) {
  return {nullptr, tensor.stride(0), tensor.stride(1), tensor.stride(2)};
}

Status set_mask(Preparation& op, Attention& attention) {
  AttentionCall& call = attention.call;
  ACCORD_ASSIGN_OR_RETURN(attention.mask, op.maybe_tensor("attn_mask"));
  if (!attention.mask) return Status();
  Tensor& mask = *attention.mask;
  ACCORD_RETURN_IF_ERROR(op.require(mask, {DType::kFloat32, DType::kBool}));
  const Sizes scores = {call.batch, call.heads, call.q_len, call.k_len};
  ACCORD_ASSIGN_OR_RETURN(mask.layout, kernels::broadcast_layout(mask.layout, scores));
  call.mask.kind = mask.dtype == DType::kBool ? kernels::MaskKind::kBool : kernels::MaskKind::kAdditive;
  call.mask.batch_stride = mask.stride(0);
  call.mask.head_stride = mask.stride(1);
  call.mask.row_stride = mask.stride(2);
  call.mask.column_stride = mask.stride(3);
  return Status();
}

// Computes heads [first, last) of batch * heads, in pieces that belong to one batch entry.
Status run_heads(const Attention& attention, const Execution& execution, const PartRange& range, int part) {
  const AttentionCall& whole = attention.call;
  const auto per_thread = attention.scratch.size(1);
  const std::span<float> scratch(execution.data<float>(attention.scratch) + part * per_thread,
                                 static_cast<std::size_t>(per_thread));
  const std::int64_t queries_per_key = whole.heads / whole.kv_heads;
  std::int64_t at = range.first;
  while (at < range.last) {
    const std::int64_t batch = at / whole.heads;
    const std::int64_t head = at % whole.heads;
    const bool all_heads = head == 0 && range.last - at >= whole.heads;
    AttentionCall call = whole;
    call.batch = 1;
    if (!all_heads) call.heads = call.kv_heads = 1;
    const std::int64_t kv_head = head / queries_per_key;
    call.q.data = execution.data<const float>(attention.q) + batch * call.q.batch_stride + head * call.q.head_stride;
    call.k.data = execution.data<const float>(attention.k) + batch * call.k.batch_stride + kv_head * call.k.head_stride;
    call.v.data = execution.data<const float>(attention.v) + batch * call.v.batch_stride + kv_head * call.v.head_stride;
    call.output.data =
        execution.data<float>(attention.output) + batch * call.output.batch_stride + head * call.output.head_stride;
    if (attention.mask) {
      const std::int64_t offset = batch * call.mask.batch_stride + head * call.mask.head_stride;
      call.mask.data =
          execution.address(*attention.mask) + offset * static_cast<std::int64_t>(size_of(attention.mask->dtype));
    }
    ACCORD_RETURN_IF_ERROR(kernels::attention(call, scratch));
    at += all_heads ? whole.heads : 1;
  }
  return Status();
}

Status prepare_attention(Preparation& op) {
  Attention attention;
  AttentionCall& call = attention.call;
  ACCORD_ASSIGN_OR_RETURN(const Tensor query, op.tensor("query"));
  ACCORD_ASSIGN_OR_RETURN(const Tensor key, op.tensor("key"));
  ACCORD_ASSIGN_OR_RETURN(const Tensor value, op.tensor("value"));
  ACCORD_ASSIGN_OR_RETURN(attention.q, with_batch(op, query));
  ACCORD_ASSIGN_OR_RETURN(attention.k, with_batch(op, key));
  ACCORD_ASSIGN_OR_RETURN(attention.v, with_batch(op, value));
  const Tensor& q = attention.q;
  const Tensor& k = attention.k;
  const Tensor& v = attention.v;
  call.batch = q.size(0);
  call.heads = q.size(1);
  call.kv_heads = k.size(1);
  call.q_len = q.size(2);
  call.k_len = k.size(2);
  call.head_dim = q.size(3);
  call.value_dim = v.size(3);
  const bool fits = k.size(0) == call.batch && v.size(0) == call.batch && v.size(1) == call.kv_heads &&
                    v.size(2) == call.k_len && k.size(3) == call.head_dim && call.kv_heads > 0 &&
                    call.heads % call.kv_heads == 0;
  if (!fits) return op.corrupt("query, key and value do not fit each other");
  ACCORD_ASSIGN_OR_RETURN(const bool grouped, op.flag("enable_gqa", false));
  if (call.heads != call.kv_heads && !grouped) return op.corrupt("fewer key heads than query heads without enable_gqa");
  ACCORD_ASSIGN_OR_RETURN(const double dropout, op.real("dropout_p", 0.0));
  if (dropout != 0.0) return op.unsupported("dropout; export the model in eval mode");
  ACCORD_ASSIGN_OR_RETURN(const bool causal, op.flag("is_causal", false));
  call.causality = causal ? kernels::Causality::kCausal : kernels::Causality::kFull;
  ACCORD_ASSIGN_OR_RETURN(const double scale, op.real("scale", 1.0 / std::sqrt(static_cast<double>(call.head_dim))));
  call.scale = static_cast<float>(scale);
  ACCORD_RETURN_IF_ERROR(set_mask(op, attention));

  const Sizes sizes = {call.batch, call.heads, call.q_len, call.value_dim};
  static constexpr int kBatchLengthHeadsDim[] = {0, 2, 1, 3};
  if (query.dims() == 4) {
    ACCORD_ASSIGN_OR_RETURN(attention.output, op.make_ordered(0, sizes, kBatchLengthHeadsDim));
  } else {
    ACCORD_ASSIGN_OR_RETURN(attention.output, op.make(0, {call.heads, call.q_len, call.value_dim}));
    attention.output.layout = kernels::contiguous_layout(sizes);
  }
  call.q = heads_of(q);
  call.k = heads_of(k);
  call.v = heads_of(v);
  call.output = {nullptr, attention.output.stride(0), attention.output.stride(1), attention.output.stride(2)};

  const std::int64_t heads = call.batch * call.heads;
  const int parts = static_cast<int>(std::min<std::int64_t>(op.threads(), std::max<std::int64_t>(heads, 1)));
  const auto per_thread = static_cast<std::int64_t>(kernels::attention_scratch(call) + 15) / 16 * 16;
  ACCORD_ASSIGN_OR_RETURN(attention.scratch, op.scratch(DType::kFloat32, {parts, per_thread}));
  op.step([attention, heads, parts](const Execution& execution) {
    return execution.pool.run(
        parts, [&](int part) { return run_heads(attention, execution, part_range(heads, 1, part, parts), part); });
  });
  return Status();
}

constexpr OpEntry kAttentionOps[] = {
    {"aten.scaled_dot_product_attention.default", prepare_attention},
};

}  // namespace

std::span<const OpEntry> attention_ops() { return kAttentionOps; }

}  // namespace accord::engine
