// Rows of any float dtype are read as they are.
#include "engine/ops/attention.hpp"

#include <algorithm>
#include <limits>
#include <optional>

#include "engine/gpu/heads.hpp"
#include "engine/gpu/kernels/tile_attention_kernels.hpp"
#include "engine/gpu/paged_attention.hpp"
#include "engine/gpu/steps.hpp"
#include "engine/gpu/tile_launch.hpp"

namespace accord::engine::gpu {
namespace {

template <typename Kernel>
Status launch_whole_tiles(const DeviceRun& run, const WholeCall& call) {
  const Kernel kernel{call};
  return launch_blocks(run, kernel, kernel.works(), Kernel::Attend::shared_bytes());
}
template <DType kDType>
Status launch_whole_tiles(const DeviceRun& run, const WholeCall& call, int dim) {
  if (dim == 256) return launch_whole_tiles<WholeTiles<kDType, 256, 1>>(run, call);
  const std::int64_t queries = call.batch * call.q_len * call.heads;
  if (fill_high_tiles<typename WholeTiles<kDType, 64, 2>::Attend>(queries, run.multiprocessors)) {
    return dim == 64 ? launch_whole_tiles<WholeTiles<kDType, 64, 2>>(run, call)
                     : launch_whole_tiles<WholeTiles<kDType, 128, 2>>(run, call);
  }
  return dim == 64 ? launch_whole_tiles<WholeTiles<kDType, 64, 1>>(run, call)
                   : launch_whole_tiles<WholeTiles<kDType, 128, 1>>(run, call);
}

/// Returns false if there is no kernel on tensor cores for such heads.
template <DType kDType>
Result<bool> launch_on_tensor_cores(const DeviceRun& run, const WholeCall& call) {
  const bool fits =
      is_in_words<kDType>(call.q, call.q_batch_stride) && is_in_words<kDType>(call.k, call.k_batch_stride) &&
      is_in_words<kDType>(call.v, call.v_batch_stride) && is_in_words<kDType>(call.output, call.output_batch_stride) &&
      std::max({call.k_len, call.k.row_stride, call.v.row_stride}) <= std::numeric_limits<int>::max() / 2;
  const int dim = fits ? tile_dim(call.head_dim, call.value_dim, {64, 128, 256}) : 0;
  if (dim == 0) return false;
  ACCORD_RETURN_IF_ERROR(launch_whole_tiles<kDType>(run, call, dim));
  return true;
}

/// A call and its kernel without addresses.
struct PagedWork {
  AppendWork append;
  PagedCall kernel;
  std::optional<Tensor> partial;
};

Status run_cached_attention(const PagedWork& work, const Execution& execution) {
  const CachedAttentionCall& tensors = work.append.call;
  const DeviceRun& run = device_run(execution);
  PagedCall kernel = work.kernel;
  kernel.cache = run.cache->layer(tensors.layer);
  kernel.batch = run.batch;
  kernel.q.data = execution.address(work.append.queries());
  kernel.output.data = execution.address(tensors.output);
  if (tensors.sinks) kernel.sinks = execution.data<const float>(*tensors.sinks);
  if (tensors.slopes) kernel.slopes = execution.data<const float>(*tensors.slopes);
  if (work.partial) kernel.partial = execution.data<float>(*work.partial);
  return launch_paged_attention(run, kernel, heads_call(work.append, execution));
}

Status add_cached_attention(Preparation& op, const CachedAttentionCall& call) {
  const Tensor &q = call.q, &k = call.k;
  if (call.biases) return op.unsupported("biases of distances have no kernel for GPUs");
  PagedWork work;
  ACCORD_ASSIGN_OR_RETURN(work.append, prepare_append(op, call));
  const std::int64_t heads_per_kv_head = q.size(1) / k.size(1);
  if (tile_heads(heads_per_kv_head, k.size(3), call.value_dim) == 0)
    return op.unsupported("its heads are too large for the kernel for GPUs");
  PagedCall& kernel = work.kernel;
  kernel.window = call.window;
  kernel.chunk = call.chunk;
  kernel.scale = call.scale;
  kernel.softcap = call.softcap;
  kernel.rows = q.size(2);
  kernel.heads = q.size(1);
  kernel.q = rows_of_heads(work.append.queries());
  kernel.output = {nullptr, call.output.dtype, call.output.stride(1), call.output.stride(2)};
  kernel.cache.kv_heads = k.size(1);
  kernel.cache.value_dim = call.value_dim;
  kernel.parts_of_one = parts_of_one(k.size(1), heads_per_kv_head, op.is_canonical());
  if (const std::int64_t floats = partial_floats(kernel); floats > 0) {
    ACCORD_ASSIGN_OR_RETURN(work.partial, op.scratch(DType::kFloat32, {floats}));
  }
  op.step([work](const Execution& execution) { return run_cached_attention(work, execution); });
  return Status();
}

Status run_attention(const AttentionCall& call, WholeAttention kernel, const Execution& execution) {
  kernel.q.data = execution.address(call.q);
  kernel.k.data = execution.address(call.k);
  kernel.v.data = execution.address(call.v);
  kernel.output.data = execution.address(call.output);
  if (call.mask) kernel.mask.data = execution.address(*call.mask);
  const DeviceRun& run = device_run(execution);
  ACCORD_ASSIGN_OR_RETURN(const bool is_done, kernel.q.dtype == DType::kFloat16
                                                  ? launch_on_tensor_cores<DType::kFloat16>(run, kernel)
                                                  : launch_on_tensor_cores<DType::kBFloat16>(run, kernel));
  if (is_done) return Status();
  const AttendSizes sizes{kernel.tile_rows * kernel.heads_per_kv_head(), static_cast<int>(kernel.head_dim),
                          static_cast<int>(kernel.value_dim)};
  const std::int64_t tiles = ceil_divide(kernel.q_len, kernel.tile_rows);
  return launch_blocks(run, kernel, kernel.batch * kernel.kv_heads * tiles, attend_bytes(sizes));
}

Status add_attention(Preparation& op, const AttentionCall& call) {
  WholeAttention kernel;
  kernel.batch = call.q.size(0);
  kernel.heads = call.q.size(1);
  kernel.kv_heads = call.k.size(1);
  kernel.q_len = call.q.size(2);
  kernel.k_len = call.k.size(2);
  kernel.head_dim = call.q.size(3);
  kernel.value_dim = call.v.size(3);
  kernel.tile_rows = tile_rows(kernel.heads / kernel.kv_heads, kernel.head_dim, kernel.value_dim);
  if (kernel.tile_rows == 0) return op.unsupported("its heads are too large for the kernel for GPUs");
  kernel.q = rows_of_heads(call.q);
  kernel.k = rows_of_heads(call.k);
  kernel.v = rows_of_heads(call.v);
  kernel.output = rows_of_heads(call.output);
  kernel.q_batch_stride = call.q.stride(0);
  kernel.k_batch_stride = call.k.stride(0);
  kernel.v_batch_stride = call.v.stride(0);
  kernel.output_batch_stride = call.output.stride(0);
  if (call.mask) {
    kernel.mask_kind = call.mask->dtype == DType::kBool ? WholeCall::Mask::kBool : WholeCall::Mask::kAdditive;
    kernel.mask.dtype = call.mask->dtype;
    std::copy_n(call.mask->layout.strides.begin(), 4, kernel.mask.strides);
  }
  kernel.causal = call.is_causal;
  kernel.scale = call.scale;
  op.step([call, kernel](const Execution& execution) { return run_attention(call, kernel, execution); });
  return Status();
}

}  // namespace

void set_attention_steps(StepTable& table) {
  table.set<AttentionCall>(add_attention);
  table.set<CachedAttentionCall>(add_cached_attention);
  table.set<RotaryCall>(add_rotary);
}

}  // namespace accord::engine::gpu
