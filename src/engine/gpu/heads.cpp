// One kernel rotates queries and keys and writes keys and values to the cache. Without a cache it only rotates.
#include "engine/gpu/heads.hpp"

#include <algorithm>

#include "engine/gpu/cache.hpp"
#include "engine/gpu/elementwise.hpp"

namespace accord::engine::gpu {
namespace {

HeadRows placed_rows(const Tensor& tensor, const Execution& execution) {
  HeadRows rows = rows_of_heads(tensor);
  rows.data = execution.address(tensor);
  return rows;
}

template <DType kDType>
Status launch_heads(const DeviceRun& run, const HeadsCall& call) {
  constexpr std::int64_t kWarp = 32, kPair = 2 * kElementsOfWords<kDType>;
  const std::int64_t dim = std::max(call.head_dim, call.value_dim());
  const std::int64_t lanes = std::min(ceil_divide(dim, kPair), kWarp);  // for each head
  return launch_over(run, RotateAndAppend<kDType>{{call}},
                     call.rows * (call.heads + call.cached_each() * call.kv_heads()) * lanes);
}

void set_rotation(HeadsCall& call, const Tensor& x, const RotaryTables& tables, const Tensor& y,
                  const Execution& execution) {
  call.heads = x.size(1);
  call.x = placed_rows(x, execution);
  call.cos = placed_rows(tables.cos, execution);
  call.sin = placed_rows(tables.sin, execution);
  call.rotated = placed_rows(y, execution);
}

// Returns `tensor`, or a copy of it in `dtype`, with its heads contiguous.
Result<Tensor> heads_in(Preparation& op, const Tensor& tensor, DType dtype) {
  ACCORD_ASSIGN_OR_RETURN(const Tensor converted, op.converted(tensor, dtype));
  return heads_of(op, converted);
}

Result<RotaryTables> tables_in(Preparation& op, const RotaryTables& tables, DType dtype) {
  RotaryTables converted;
  ACCORD_ASSIGN_OR_RETURN(converted.cos, heads_in(op, tables.cos, dtype));
  ACCORD_ASSIGN_OR_RETURN(converted.sin, heads_in(op, tables.sin, dtype));
  return converted;
}

}  // namespace

HeadRows rows_of_heads(const Tensor& tensor) {
  return {nullptr, tensor.dtype, tensor.stride(tensor.dims() - 2), tensor.stride(tensor.dims() - 3)};
}

Result<AppendWork> prepare_append(Preparation& op, const CachedAttentionCall& call) {
  AppendWork work{call, {}};
  const DType dtype = call.q.dtype;
  ACCORD_ASSIGN_OR_RETURN(work.call.k, heads_in(op, call.k, dtype));
  if (call.v) {
    ACCORD_ASSIGN_OR_RETURN(work.call.v, heads_in(op, *call.v, dtype));
  }
  if (!call.rotary) return work;
  ACCORD_ASSIGN_OR_RETURN(work.call.rotary, tables_in(op, *call.rotary, dtype));
  ACCORD_ASSIGN_OR_RETURN(work.rotated, rotary_scratch(op, call.q));
  return work;
}

Status launch_heads(const DeviceRun& run, const HeadsCall& call, DType dtype) {
  switch (dtype) {
    case DType::kFloat16: return launch_heads<DType::kFloat16>(run, call);
    case DType::kBFloat16: return launch_heads<DType::kBFloat16>(run, call);
    default: return launch_heads<DType::kFloat32>(run, call);
  }
}

HeadsCall heads_call(const AppendWork& work, const Execution& execution) {
  const DeviceRun& run = device_run(execution);
  HeadsCall call;
  call.rows = work.call.k.size(2);
  call.head_dim = work.call.k.size(3);
  if (work.rotated) set_rotation(call, work.call.q, *work.call.rotary, *work.rotated, execution);
  call.keys = placed_rows(work.call.k, execution);
  if (work.call.v) call.values = placed_rows(*work.call.v, execution);
  call.cache = run.cache->layer(work.call.layer);
  call.batch = run.batch;
  return call;
}

Status add_rotary(Preparation& op, const RotaryCall& given) {
  RotaryCall call = given;
  ACCORD_ASSIGN_OR_RETURN(call.x, heads_in(op, given.x, given.y.dtype));
  ACCORD_ASSIGN_OR_RETURN(call.tables, tables_in(op, given.tables, given.y.dtype));
  op.step([call](const Execution& execution) {
    HeadsCall heads;
    heads.rows = call.x.size(2);
    heads.head_dim = call.x.size(3);
    set_rotation(heads, call.x, call.tables, call.y, execution);
    return launch_heads(device_run(execution), heads, call.y.dtype);
  });
  return Status();
}

}  // namespace accord::engine::gpu
