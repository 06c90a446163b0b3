// Attention over the cache of the running context. The rows of the batch belong to several sequences. Their keys and
// values are first written to the cache, head by head. Then each piece of a sequence's rows is one part of the work
// for each key head.
#include "engine/graph/ops.hpp"
#include "engine/host/key_value_cache.hpp"
#include "engine/ops/op_registry.hpp"
#include "kernels/paged_attention.hpp"
#include "kernels/rotary.hpp"

namespace accord::engine {
namespace {

constexpr std::int64_t kRowsOfPart = 32;

/// Everything but addresses.
struct CachedAttention {
  std::int64_t layer = 0;
  Tensor q, k, v;
  Tensor output;
  Tensor scratch;  // one piece per thread
  std::int64_t kv_heads = 0;
  kernels::PagedAttentionCall call;
};

Result<Tensor> heads_argument(Preparation& op, std::string_view name) {
  ACCORD_ASSIGN_OR_RETURN(const Tensor tensor, op.tensor(name));
  ACCORD_RETURN_IF_ERROR(op.require(tensor, {DType::kFloat32}));
  if (tensor.dims() != 4 || tensor.size(0) != 1) return op.corrupt("its tensors are not [1, heads, tokens, dim]");
  if (tensor.size(3) != 1 && tensor.stride(3) != 1) return op.contiguous(tensor);
  return tensor;
}

kernels::ConstTokenRows rows_from(const Execution& execution, const Tensor& tensor, std::int64_t first_row) {
  return {execution.data<const float>(tensor) + first_row * tensor.stride(2), tensor.stride(2), tensor.stride(1)};
}

std::int64_t parts_of(const BatchRows& sequence) { return (sequence.rows.rows + kRowsOfPart - 1) / kRowsOfPart; }

Status run_attention(const CachedAttention& attention, const Execution& execution) {
  const kernels::PagedCache& cache = execution.cache->layer(attention.layer);
  const auto kv_heads = static_cast<int>(attention.kv_heads);
  ACCORD_RETURN_IF_ERROR(execution.pool.run(kv_heads, [&](int head) {
    for (const BatchRows& sequence : execution.batch) {
      kernels::append_to_cache(cache, sequence.rows, rows_from(execution, attention.k, sequence.first_row),
                               rows_from(execution, attention.v, sequence.first_row), head, 1);
    }
    return Status();
  }));
  std::int64_t parts = 0;
  for (const BatchRows& sequence : execution.batch) parts += parts_of(sequence);
  return execution.pool.run(static_cast<int>(parts) * kv_heads, [&](int part, int thread) {
    std::int64_t piece = part / kv_heads;
    std::size_t at = 0;
    while (piece >= parts_of(execution.batch[at])) piece -= parts_of(execution.batch[at++]);
    const BatchRows& sequence = execution.batch[at];
    kernels::PagedAttentionCall call = attention.call;
    call.cache = cache;
    call.q = rows_from(execution, attention.q, sequence.first_row);
    call.output = {execution.data<float>(attention.output) + sequence.first_row * attention.output.stride(1),
                   attention.output.stride(1), attention.output.stride(2)};
    const auto per_thread = static_cast<std::size_t>(attention.scratch.size(1));
    float* scratch = execution.data<float>(attention.scratch) + static_cast<std::size_t>(thread) * per_thread;
    const std::int64_t first = piece * kRowsOfPart;
    kernels::paged_attention(call, sequence.rows, part % kv_heads, first,
                             std::min(kRowsOfPart, sequence.rows.rows - first), {scratch, per_thread});
    return Status();
  });
}

Status prepare_cached_attention(Preparation& op) {
  CachedAttention attention;
  kernels::PagedAttentionCall& call = attention.call;
  ACCORD_ASSIGN_OR_RETURN(attention.q, heads_argument(op, "query"));
  ACCORD_ASSIGN_OR_RETURN(attention.k, heads_argument(op, "key"));
  ACCORD_ASSIGN_OR_RETURN(attention.v, heads_argument(op, "value"));
  const Tensor& q = attention.q;
  const Tensor& k = attention.k;
  const Tensor& v = attention.v;
  attention.kv_heads = k.size(1);
  const bool fits = k.size(2) == q.size(2) && v.size(2) == q.size(2) && v.size(1) == k.size(1) &&
                    k.size(3) == q.size(3) && k.size(1) > 0 && q.size(1) % k.size(1) == 0;
  if (!fits) return op.corrupt("query, key and value do not fit each other");
  ACCORD_ASSIGN_OR_RETURN(attention.layer, op.integer("layer"));
  ACCORD_ASSIGN_OR_RETURN(const double scale, op.real("scale"));
  ACCORD_ASSIGN_OR_RETURN(call.window, op.integer("window", 0));
  ACCORD_ASSIGN_OR_RETURN(const double softcap, op.real("softcap", 0.0));
  if (call.window < 0 || softcap < 0) return op.corrupt("a negative window or softcap");
  call.scale = static_cast<float>(scale);
  call.softcap = static_cast<float>(softcap);
  call.heads = q.size(1);
  call.cache = {.kv_heads = k.size(1), .head_dim = k.size(3), .value_dim = v.size(3)};
  ACCORD_RETURN_IF_ERROR(op.take_batch_rows(q.size(2)));
  ACCORD_ASSIGN_OR_RETURN(attention.output, op.make(0, {1, q.size(2), q.size(1), v.size(3)}));
  const auto per_thread = static_cast<std::int64_t>(paged_attention_scratch(call) + 15) / 16 * 16;
  ACCORD_ASSIGN_OR_RETURN(attention.scratch, op.scratch(DType::kFloat32, {op.threads(), per_thread}));
  op.step_always([attention](const Execution& execution) { return run_attention(attention, execution); });
  return Status();
}

// Each row of the tables is a token; all heads of a token use the same row.
Status prepare_rotary(Preparation& op) {
  ACCORD_ASSIGN_OR_RETURN(const Tensor x, heads_argument(op, "input"));
  ACCORD_ASSIGN_OR_RETURN(const Tensor cos_given, heads_argument(op, "cos"));
  ACCORD_ASSIGN_OR_RETURN(const Tensor sin_given, heads_argument(op, "sin"));
  ACCORD_ASSIGN_OR_RETURN(const Tensor cos, op.contiguous(cos_given));
  ACCORD_ASSIGN_OR_RETURN(const Tensor sin, op.contiguous(sin_given));
  const Sizes table = {1, 1, x.size(2), x.size(3)};
  if (cos.sizes() != table || sin.sizes() != table || x.size(3) % 2 != 0) return op.corrupt("its tables do not fit");
  static constexpr int kTokensFirst[] = {0, 2, 1, 3};
  ACCORD_ASSIGN_OR_RETURN(const Tensor y, op.make_ordered(0, x.sizes(), kTokensFirst));
  op.step([=](const Execution& execution) {
    const int parts = x.size(2) < kRowsOfPart ? 1 : execution.pool.threads();
    return execution.pool.run(parts, [&](int part) {
      const PartRange range = part_range(x.size(2), 1, part, parts);
      kernels::RotaryCall call;
      call.x = execution.data<const float>(x) + range.first * x.stride(2);
      call.x_row_stride = x.stride(2);
      call.x_head_stride = x.stride(1);
      call.cos = execution.data<const float>(cos) + range.first * x.size(3);
      call.sin = execution.data<const float>(sin) + range.first * x.size(3);
      call.table_row_stride = x.size(3);
      call.y = execution.data<float>(y) + range.first * y.stride(2);
      call.y_row_stride = y.stride(2);
      call.y_head_stride = y.stride(1);
      call.rows = range.last - range.first;
      call.heads = x.size(1);
      call.dim = x.size(3);
      kernels::rotary(call);
      return Status();
    });
  });
  return Status();
}

constexpr OpEntry kCachedAttentionOps[] = {
    {kCachedAttention, prepare_cached_attention},
    {"accord.rotary", prepare_rotary},
};

}  // namespace

std::span<const OpEntry> cached_attention_ops() { return kCachedAttentionOps; }

}  // namespace accord::engine
