// Rows of any float dtype are read as they are.
#include "engine/ops/attention.hpp"

#include <algorithm>
#include <limits>

#include "engine/gpu/cache.hpp"
#include "engine/gpu/heads.hpp"
#include "engine/gpu/kernels/decoding_kernel.hpp"
#include "engine/gpu/kernels/tile_attention_kernels.hpp"
#include "engine/gpu/run.hpp"
#include "engine/gpu/steps.hpp"

namespace accord::engine::gpu {
namespace {

constexpr int kMaxQueries = 64;      // per block
constexpr std::int64_t kLanes = 32;  // of a GPU's warp
constexpr std::size_t kMaxSharedBytes = std::size_t{160} << 10;
// If there are few rows, each one reads its context by itself. That work is divided among blocks until there are
// enough of them for any GPU.
constexpr std::int64_t kTargetBlocks = 512, kMaxSplits = 64;

/// Returns how many rows of queries fit into a block's shared memory; 0 if not even one does.
int tile_rows(std::int64_t heads_per_kv_head, std::int64_t head_dim, std::int64_t value_dim) {
  for (std::int64_t rows = std::max<std::int64_t>(kMaxQueries / heads_per_kv_head, 1); rows > 0; rows /= 2) {
    const AttendSizes sizes{static_cast<int>(rows * heads_per_kv_head), static_cast<int>(head_dim),
                            static_cast<int>(value_dim)};
    if (attend_bytes(sizes) <= kMaxSharedBytes) return static_cast<int>(rows);
  }
  return 0;
}

// Returns how many query heads of one key head a block takes.
std::int64_t heads_of_block(std::int64_t heads_per_kv_head) {
  return heads_per_kv_head == 1 ? 1 : heads_per_kv_head <= 4 ? 4 : 8;
}

// Returns the number of parts into which a row's tokens are divided. It depends on the program's shape and the
// capacity of the cache, but not on the length of the sequences, which a graph does not learn.
std::int64_t splits_of(std::int64_t rows, std::int64_t kv_heads, std::int64_t heads_per_kv_head) {
  const std::int64_t blocks = rows * kv_heads * ceil_divide(heads_per_kv_head, heads_of_block(heads_per_kv_head));
  return std::clamp<std::int64_t>(ceil_divide(kTargetBlocks, std::max<std::int64_t>(blocks, 1)), 1, kMaxSplits);
}
std::int64_t splits_of(const PagedCall& call, const KeyValueCacheOptions& options) {
  const std::int64_t all = options.blocks * options.block_tokens;
  const std::int64_t seen = call.window > 0 ? std::min(call.window, all) : all;
  return std::clamp<std::int64_t>(ceil_divide(seen, kMinPartTokens), 1, call.splits);
}

/// Returns false if the cache's rows do not suit the kernel.
template <DType kDType, int kQueries>
Result<bool> launch_decoding(const DeviceRun& run, const PagedCall& call) {
  using Kernel = DecodingAttention<kDType, kQueries>;
  const DeviceCacheLayer& cache = call.cache;
  if (cache.head_dim % Kernel::kEach != 0 || cache.value_dim % Kernel::kEach != 0) return false;
  const std::size_t bytes = Kernel::shared_bytes(cache.head_dim, cache.value_dim);
  if (bytes > kMaxSharedBytes) return false;
  const Kernel kernel{call};
  ACCORD_RETURN_IF_ERROR(launch_blocks(run, kernel, kernel.works(), bytes));
  return true;
}
template <DType kDType>
Result<bool> launch_decoding(const DeviceRun& run, const PagedCall& call) {
  switch (heads_of_block(call.heads_per_kv_head())) {
    case 1: return launch_decoding<kDType, 1>(run, call);
    case 4: return launch_decoding<kDType, 4>(run, call);
    default: return launch_decoding<kDType, 8>(run, call);
  }
}

/// Returns the head size that a kernel on tensor cores must be compiled for; 0 if no kernel takes such heads.
int tile_dim(std::int64_t head_dim, std::int64_t value_dim) {
  if (head_dim % kTileDim != 0 || value_dim % kTileDim != 0) return 0;
  const std::int64_t most = std::max(head_dim, value_dim);
  return most <= 64 ? 64 : most <= 128 ? 128 : most <= 256 ? 256 : 0;
}

/// Returns whether heads of kDType are whole Words in memory. `batch_stride`: in elements.
template <DType kDType>
bool is_in_words(const HeadRows& rows, std::int64_t batch_stride = 0) {
  constexpr int kEach = kElementsOfWords<kDType>;
  return rows.dtype == kDType && reinterpret_cast<std::uintptr_t>(rows.data) % sizeof(Words) == 0 &&
         rows.row_stride % kEach == 0 && rows.head_stride % kEach == 0 && batch_stride % kEach == 0;
}

template <typename Kernel, typename Call>
Result<bool> launch_on_tensor_cores(const DeviceRun& run, const Call& call, std::int64_t head_dim,
                                    std::int64_t value_dim) {
  const Kernel kernel{call};
  ACCORD_RETURN_IF_ERROR(launch_blocks(run, kernel, kernel.works(), Kernel::Attend::shared_bytes(head_dim, value_dim)));
  return true;
}

/// Same for the heads of `call`; 0 also if its dtypes or its layout do not suit.
int tile_dim(const PagedCall& call) {
  constexpr DType kDType = DType::kBFloat16;
  const bool fits = call.cache.dtype == kDType && is_in_words<kDType>(call.q) && is_in_words<kDType>(call.output);
  return fits ? tile_dim(call.cache.head_dim, call.cache.value_dim) : 0;
}

/// Returns false if there is no kernel on tensor cores for such heads.
Result<bool> launch_on_tensor_cores(const DeviceRun& run, const PagedCall& call) {
  const DeviceCacheLayer& cache = call.cache;
  switch (tile_dim(call)) {
    case 64: return launch_on_tensor_cores<PagedTiles<64>>(run, call, cache.head_dim, cache.value_dim);
    case 128: return launch_on_tensor_cores<PagedTiles<128>>(run, call, cache.head_dim, cache.value_dim);
    case 256: return launch_on_tensor_cores<PagedTiles<256>>(run, call, cache.head_dim, cache.value_dim);
    default: return false;
  }
}
template <DType kDType>
Result<bool> launch_on_tensor_cores(const DeviceRun& run, const WholeCall& call) {
  const bool fits =
      is_in_words<kDType>(call.q, call.q_batch_stride) && is_in_words<kDType>(call.k, call.k_batch_stride) &&
      is_in_words<kDType>(call.v, call.v_batch_stride) && is_in_words<kDType>(call.output, call.output_batch_stride) &&
      call.k_len <= std::numeric_limits<int>::max() / 2;  // token indices have 32 bits there
  if (!fits) return false;
  switch (tile_dim(call.head_dim, call.value_dim)) {
    case 64: return launch_on_tensor_cores<WholeTiles<kDType, 64>>(run, call, call.head_dim, call.value_dim);
    case 128: return launch_on_tensor_cores<WholeTiles<kDType, 128>>(run, call, call.head_dim, call.value_dim);
    case 256: return launch_on_tensor_cores<WholeTiles<kDType, 256>>(run, call, call.head_dim, call.value_dim);
    default: return false;
  }
}

Status launch_without_tensor_cores(const DeviceRun& run, const PagedCall& call, int tile_rows) {
  PagedAttention kernel{call};
  kernel.tile_rows = tile_rows;
  const AttendSizes sizes{tile_rows * call.heads_per_kv_head(), static_cast<int>(call.cache.head_dim),
                          static_cast<int>(call.cache.value_dim)};
  return launch_blocks(run, kernel, kernel.tiles() * call.cache.kv_heads * call.splits, attend_bytes(sizes));
}

Status launch_few_rows(const DeviceRun& run, const PagedCall& call) {
  ACCORD_ASSIGN_OR_RETURN(const bool is_done,
                          call.cache.dtype == DType::kFloat32    ? launch_decoding<DType::kFloat32>(run, call)
                          : call.cache.dtype == DType::kBFloat16 ? launch_decoding<DType::kBFloat16>(run, call)
                                                                 : launch_decoding<DType::kInt8>(run, call));
  if (!is_done) ACCORD_RETURN_IF_ERROR(launch_without_tensor_cores(run, call, 1));
  if (call.splits == 1) return Status();
  return launch_over(run, CombineSplits{call},  // each lane of a warp computes one element
                     call.rows * call.heads * ceil_divide(call.cache.value_dim, kLanes) * kLanes);
}

Status launch_many_rows(const DeviceRun& run, PagedCall call, int tile_rows) {
  call.rows_of = RowsOf::kLongSequences;
  call.splits = 1;
  ACCORD_ASSIGN_OR_RETURN(const bool is_done, launch_on_tensor_cores(run, call));
  return is_done ? Status() : launch_without_tensor_cores(run, call, tile_rows);
}

// A sequence has few rows if their queries over one key head fill no more than one warp's part of a tile; without
// tensor cores, no more than a tile.
int few_rows(const PagedCall& call) {
  return std::max((tile_dim(call) > 0 ? kQueriesOfWarp : kMaxQueries) / call.heads_per_kv_head(), 1);
}

/// A call and its kernel without addresses.
struct PagedWork {
  AppendWork append;
  PagedCall kernel;
  std::optional<Tensor> partial;  ///< of more than one split
  int tile_rows = 1;              ///< for many rows, without tensor cores
};

// The kernels learn from the tables of the batch which rows belong to short sequences, so that one graph serves any
// sequences with the same number of rows in total.
Status run_cached_attention(const PagedWork& work, const Execution& execution) {
  const CachedAttentionCall& tensors = work.append.call;
  const DeviceRun& run = device_run(execution);
  PagedCall kernel = work.kernel;
  kernel.cache = run.cache->layer(tensors.layer);
  kernel.batch = run.batch;
  kernel.q.data = execution.address(work.append.queries());
  kernel.output.data = execution.address(tensors.output);
  ACCORD_RETURN_IF_ERROR(launch_append(work.append, execution));
  kernel.few_rows = few_rows(kernel);
  kernel.splits = static_cast<int>(splits_of(kernel, run.cache->options()));
  if (kernel.splits > 1) kernel.partial = execution.data<float>(*work.partial);
  ACCORD_RETURN_IF_ERROR(launch_few_rows(run, kernel));
  return kernel.rows > kernel.few_rows ? launch_many_rows(run, kernel, work.tile_rows) : Status();
}

Status add_cached_attention(Preparation& op, const CachedAttentionCall& call) {
  const Tensor &q = call.q, &k = call.k, &v = call.v;
  PagedWork work;
  ACCORD_ASSIGN_OR_RETURN(work.append, prepare_append(op, call));
  const std::int64_t heads_per_kv_head = q.size(1) / k.size(1);
  work.tile_rows = tile_rows(heads_per_kv_head, k.size(3), v.size(3));
  if (work.tile_rows == 0) return op.unsupported("its heads are too large for the kernel for GPUs");
  PagedCall& kernel = work.kernel;
  kernel.window = call.window;
  kernel.scale = call.scale;
  kernel.softcap = call.softcap;
  kernel.rows = q.size(2);
  kernel.heads = q.size(1);
  kernel.q = rows_of_heads(work.append.queries());
  kernel.output = {nullptr, call.output.dtype, call.output.stride(1), call.output.stride(2)};
  // The number of parts must not depend on how many of the heads this rank has.
  const std::int64_t splits =
      op.is_canonical() ? splits_of(kernel.rows, 1, 1) : splits_of(kernel.rows, k.size(1), heads_per_kv_head);
  kernel.splits = static_cast<int>(splits);
  if (splits > 1) {
    ACCORD_ASSIGN_OR_RETURN(work.partial,
                            op.scratch(DType::kFloat32, {kernel.rows, kernel.heads, splits, v.size(3) + 2}));
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
