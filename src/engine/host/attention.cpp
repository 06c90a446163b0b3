// Attention and rotary embedding in float32.
#include "engine/ops/attention.hpp"

#include <algorithm>

#include "engine/graph/node_access.hpp"
#include "engine/host/attention_rows.hpp"
#include "engine/host/divided_attention.hpp"
#include "engine/host/row_parts.hpp"
#include "engine/host/steps.hpp"
#include "kernels/attention/attention.hpp"
#include "kernels/attention/paged_attention.hpp"
#include "kernels/attention/rotary.hpp"

namespace accord::engine::host {
namespace {

Status require_float32(const Preparation& op, std::initializer_list<const Tensor*> tensors) {
  for (const Tensor* tensor : tensors) ACCORD_RETURN_IF_ERROR(op.require(*tensor, {DType::kFloat32}));
  return Status();
}

/// A call and its kernel without addresses.
struct HeadsInParts {
  AttentionCall call;
  kernels::AttentionCall kernel;
  Tensor scratch;  ///< one piece per part
};

kernels::AttentionCall kernel_of(const AttentionCall& call) {
  const auto heads = [](const Tensor& tensor) {
    return kernels::ConstHeads{nullptr, tensor.stride(0), tensor.stride(1), tensor.stride(2)};
  };
  kernels::AttentionCall kernel;
  kernel.batch = call.q.size(0);
  kernel.heads = call.q.size(1);
  kernel.kv_heads = call.k.size(1);
  kernel.q_len = call.q.size(2);
  kernel.k_len = call.k.size(2);
  kernel.head_dim = call.q.size(3);
  kernel.value_dim = call.v.size(3);
  kernel.q = heads(call.q);
  kernel.k = heads(call.k);
  kernel.v = heads(call.v);
  if (call.mask) {
    const Tensor& mask = *call.mask;
    const bool adds = mask.dtype != DType::kBool;
    kernel.mask = {adds ? kernels::MaskKind::kAdditive : kernels::MaskKind::kBool,
                   nullptr,
                   mask.stride(0),
                   mask.stride(1),
                   mask.stride(2),
                   mask.stride(3)};
  }
  kernel.causality = call.is_causal ? kernels::Causality::kCausal : kernels::Causality::kFull;
  kernel.scale = call.scale;
  kernel.output = {nullptr, call.output.stride(0), call.output.stride(1), call.output.stride(2)};
  return kernel;
}

// Computes heads [first, last) of batch * heads, in pieces that belong to one batch entry.
Status run_heads(const HeadsInParts& attention, const Execution& execution, const PartRange& range, int part) {
  const AttentionCall& call = attention.call;
  const kernels::AttentionCall& whole = attention.kernel;
  const std::int64_t queries_per_key = whole.heads / whole.kv_heads;
  std::int64_t at = range.first;
  while (at < range.last) {
    const std::int64_t batch = at / whole.heads;
    const std::int64_t head = at % whole.heads;
    const bool all_heads = head == 0 && range.last - at >= whole.heads;
    kernels::AttentionCall kernel = whole;
    kernel.batch = 1;
    if (!all_heads) kernel.heads = kernel.kv_heads = 1;
    const std::int64_t kv_head = head / queries_per_key;
    const auto address = [&](const Tensor& tensor, std::int64_t its_head) {
      return execution.data<float>(tensor) + batch * tensor.stride(0) + its_head * tensor.stride(1);
    };
    kernel.q.data = address(call.q, head);
    kernel.k.data = address(call.k, kv_head);
    kernel.v.data = address(call.v, kv_head);
    kernel.output.data = address(call.output, head);
    if (call.mask) {
      const std::int64_t offset = batch * kernel.mask.batch_stride + head * kernel.mask.head_stride;
      kernel.mask.data = execution.address(*call.mask) + offset * static_cast<std::int64_t>(size_of(call.mask->dtype));
    }
    ACCORD_RETURN_IF_ERROR(kernels::attention(kernel, scratch_of(attention.scratch, execution, part)));
    at += all_heads ? whole.heads : 1;
  }
  return Status();
}

// Heads are divided among threads.
Status add_attention(Preparation& op, const AttentionCall& call) {
  ACCORD_RETURN_IF_ERROR(require_float32(op, {&call.q, &call.k, &call.v, &call.output}));
  if (call.mask) ACCORD_RETURN_IF_ERROR(op.require(*call.mask, {DType::kFloat32, DType::kBool}));
  HeadsInParts attention{call, kernel_of(call), {}};
  const std::int64_t heads = call.q.size(0) * call.q.size(1);
  const int parts = static_cast<int>(std::min<std::int64_t>(op.threads(), std::max<std::int64_t>(heads, 1)));
  ACCORD_ASSIGN_OR_RETURN(attention.scratch, scratch_pieces(op, parts, kernels::attention_scratch(attention.kernel)));
  op.step([attention, heads, parts](const Execution& execution) {
    return pool_of(execution).run(
        parts, [&](int part) { return run_heads(attention, execution, part_range(heads, 1, part, parts), part); });
  });
  return Status();
}

// The sizes of a call's cache, as far as its kernel needs them to divide the work.
kernels::PagedAttentionCall sizes_of(const CachedAttentionCall& call) {
  kernels::PagedAttentionCall sizes;
  sizes.heads = call.q.size(1);
  sizes.cache = {.kv_heads = call.k.size(1),
                 .head_dim = call.k.size(3),
                 .value_dim = call.value_dim,
                 .value_place = call.v ? kernels::ValuePlace::kOwn : kernels::ValuePlace::kInKeys};
  return sizes;
}

// Keys and values are first written to the cache, head by head. `scratch`: one piece per thread.
Status run_cached_attention(const CachedAttentionCall& call, const Tensor& scratch, const Execution& execution) {
  const kernels::PagedCache& cache = run_of(execution).cache->layer(call.layer);
  const auto kv_heads = static_cast<int>(call.k.size(1));
  ACCORD_RETURN_IF_ERROR(pool_of(execution).run(kv_heads, [&](int head) {
    for (const BatchRows& sequence : execution.batch) {
      kernels::ConstTokenRows values;
      if (call.v) values = token_rows(execution, *call.v, sequence.first_row);
      kernels::append_to_cache(cache, sequence.rows, token_rows(execution, call.k, sequence.first_row), values, head,
                               1);
    }
    return Status();
  }));
  kernels::PagedAttentionCall all{cache, call.q.size(1), call.scale, call.softcap, call.window, call.chunk};
  if (call.sinks) all.sinks = execution.data<const float>(*call.sinks);
  if (call.slopes) all.slopes = execution.data<const float>(*call.slopes);
  set_biases(execution, call, all);
  return for_pieces(execution, all,
                    [&](const BatchRows& sequence, const kernels::PagedAttentionPart& part, int thread) {
                      kernels::PagedAttentionCall kernel = all;
                      kernel.q = token_rows(execution, call.q, sequence.first_row);
                      kernel.output = output_rows(execution, call.output, sequence.first_row);
                      kernels::paged_attention(kernel, sequence.rows, part, scratch_of(scratch, execution, thread));
                      return Status();
                    });
}

Status add_rotary(Preparation& op, const RotaryCall& call) {
  const RotaryTables& tables = call.tables;
  ACCORD_RETURN_IF_ERROR(require_float32(op, {&call.x, &tables.cos, &tables.sin, &call.y}));
  ACCORD_ASSIGN_OR_RETURN(const Tensor cos, op.contiguous(tables.cos));
  ACCORD_ASSIGN_OR_RETURN(const Tensor sin, op.contiguous(tables.sin));
  op.step([cos, sin, x = call.x, y = call.y](const Execution& execution) {
    return for_rows(execution, x.size(2), [&](const PartRange& range) {
      kernels::RotaryCall kernel;
      kernel.x = execution.data<const float>(x) + range.first * x.stride(2);
      kernel.x_row_stride = x.stride(2);
      kernel.x_head_stride = x.stride(1);
      kernel.cos = execution.data<const float>(cos) + range.first * x.size(3);
      kernel.sin = execution.data<const float>(sin) + range.first * x.size(3);
      kernel.table_row_stride = x.size(3);
      kernel.y = execution.data<float>(y) + range.first * y.stride(2);
      kernel.y_row_stride = y.stride(2);
      kernel.y_head_stride = y.stride(1);
      kernel.rows = range.last - range.first;
      kernel.heads = x.size(1);
      kernel.dim = x.size(3);
      kernels::rotary(kernel);
    });
  });
  return Status();
}

// Adds a step that rotates x. Returns the result.
Result<Tensor> rotated(Preparation& op, const Tensor& x, const RotaryTables& tables) {
  ACCORD_ASSIGN_OR_RETURN(const Tensor y, rotary_scratch(op, x));
  ACCORD_RETURN_IF_ERROR(add_rotary(op, {x, tables, y}));
  return y;
}

Status add_cached_attention(Preparation& op, const CachedAttentionCall& given) {
  CachedAttentionCall call = given;
  ACCORD_RETURN_IF_ERROR(require_float32(op, {&call.q, &call.k, &call.output}));
  if (call.v) ACCORD_RETURN_IF_ERROR(require_float32(op, {&*call.v}));
  if (call.rotary) {
    ACCORD_ASSIGN_OR_RETURN(call.q, rotated(op, given.q, *given.rotary));
    ACCORD_ASSIGN_OR_RETURN(call.k, rotated(op, given.k, *given.rotary));
  }
  ACCORD_ASSIGN_OR_RETURN(const Tensor scratch,
                          scratch_pieces(op, op.threads(), kernels::paged_attention_scratch(sizes_of(call))));
  op.step([call, scratch, node = &op.node()](const Execution& execution) {
    if (execution.context == nullptr) return run_cached_attention(call, scratch, execution);
    const Status status = run_divided_attention(call, scratch, *execution.context, execution);
    return status.ok() ? status : status.with_context(node_text(*node));
  });
  return Status();
}

}  // namespace

void set_attention_steps(StepTable& table) {
  table.set<AttentionCall>(add_attention);
  table.set<CachedAttentionCall>(add_cached_attention);
  table.set<RotaryCall>(add_rotary);
}

}  // namespace accord::engine::host
