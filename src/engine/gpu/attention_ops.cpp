// Attention and rotary embedding on devices. Rows of any float dtype are read as they are. Outputs are laid out as on
// the CPU, [.., tokens, heads, dim], so that the transpose and view that usually follow are free.
#include <cmath>
#include <limits>

#include "engine/gpu/kernels/decoding_kernel.hpp"
#include "engine/gpu/cache.hpp"
#include "engine/gpu/run.hpp"
#include "engine/gpu/kernels/tile_attention_kernels.hpp"
#include "engine/graph/ops.hpp"
#include "engine/ops/op_registry.hpp"

namespace accord::engine {
namespace {

constexpr int kMostQueries = 64;     // per block
constexpr std::int64_t kLanes = 32;  // of a GPU's warp
constexpr std::size_t kMostShared = std::size_t{160} << 10;
// If there are few rows, each one reads its context by itself. That work is divided among blocks until there are
// enough of them for any GPU.
constexpr std::int64_t kWantedBlocks = 512, kMostSplits = 64;

/// Returns how many rows of queries fit into a block's shared memory; 0 if not even one does.
int tile_rows(std::int64_t heads_together, std::int64_t head_dim, std::int64_t value_dim) {
  for (std::int64_t rows = std::max<std::int64_t>(kMostQueries / heads_together, 1); rows > 0; rows /= 2) {
    const AttendSizes sizes{static_cast<int>(rows * heads_together), static_cast<int>(head_dim),
                            static_cast<int>(value_dim)};
    if (attend_bytes(sizes) <= kMostShared) return static_cast<int>(rows);
  }
  return 0;
}

Result<Tensor> floats_of(Preparation& op, const Tensor& tensor) {
  ACCORD_RETURN_IF_ERROR(op.require(tensor, {DType::kFloat32, DType::kBFloat16, DType::kFloat16}));
  const int last = tensor.dims() - 1;
  if (last >= 0 && tensor.size(last) != 1 && tensor.stride(last) != 1) return op.contiguous(tensor);
  return tensor;
}

Result<Tensor> heads_argument(Preparation& op, std::string_view name) {
  ACCORD_ASSIGN_OR_RETURN(const Tensor tensor, op.tensor(name));
  if (tensor.dims() != 4 || tensor.size(0) != 1) return op.corrupt("its tensors are not [1, heads, tokens, dim]");
  return floats_of(op, tensor);
}

// Returns the rows of [.., heads, tokens, dim] by their strides.
HeadRows rows_of_heads(const Tensor& tensor) {
  return {nullptr, tensor.dtype, tensor.stride(tensor.dims() - 2), tensor.stride(tensor.dims() - 3)};
}

/// A call of cached attention, without addresses.
struct CachedAttention {
  std::int64_t layer = 0;
  Tensor q, k, v, output;
  std::optional<Tensor> partial;
  PagedCall call;
  int tile_rows = 1;  ///< for many rows, without tensor cores
};

// Returns how many query heads of one key head a block takes.
std::int64_t heads_of_block(std::int64_t heads_together) {
  return heads_together == 1 ? 1 : heads_together <= 4 ? 4 : 8;
}

// Returns the number of parts into which a row's tokens are divided. It depends on the program's shape and the
// capacity of the cache, but not on the length of the sequences, which a graph does not learn.
std::int64_t splits_of(std::int64_t rows, std::int64_t kv_heads, std::int64_t heads_together) {
  const std::int64_t blocks = rows * kv_heads * quotient_of_blocks(heads_together, heads_of_block(heads_together));
  return std::clamp<std::int64_t>(quotient_of_blocks(kWantedBlocks, std::max<std::int64_t>(blocks, 1)), 1, kMostSplits);
}
std::int64_t splits_of(const PagedCall& call, const KeyValueCacheOptions& options) {
  const std::int64_t all = options.blocks * options.block_tokens;
  const std::int64_t seen = call.window > 0 ? std::min(call.window, all) : all;
  return std::clamp<std::int64_t>(quotient_of_blocks(seen, kLeastPartTokens), 1, call.splits);
}

/// Returns false if the cache's rows do not suit the kernel.
template <DType kDType, int kQueries>
Result<bool> launch_decoding(const DeviceRun& run, const PagedCall& call) {
  using Kernel = DecodingAttention<kDType, kQueries>;
  const DeviceCacheLayer& cache = call.cache;
  if (cache.head_dim % Kernel::kEach != 0 || cache.value_dim % Kernel::kEach != 0) return false;
  const std::size_t bytes = Kernel::shared_bytes(cache.head_dim, cache.value_dim);
  if (bytes > kMostShared) return false;
  const Kernel kernel{call};
  ACCORD_RETURN_IF_ERROR(launch_blocks(run, kernel, kernel.works(), bytes));
  return true;
}
template <DType kDType>
Result<bool> launch_decoding(const DeviceRun& run, const PagedCall& call) {
  switch (heads_of_block(call.heads_together())) {
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

Status launch_slow(const DeviceRun& run, const PagedCall& call, int tile_rows) {
  PagedAttention kernel{call};
  kernel.tile_rows = tile_rows;
  const AttendSizes sizes{tile_rows * call.heads_together(), static_cast<int>(call.cache.head_dim),
                          static_cast<int>(call.cache.value_dim)};
  return launch_blocks(run, kernel, kernel.tiles() * call.cache.kv_heads * call.splits, attend_bytes(sizes));
}

Status launch_append(const DeviceRun& run, const AppendCall& call) {
  const std::int64_t heads = call.rows * call.cache.kv_heads;
  if (call.cache.dtype == DType::kInt8) return launch_over(run, AppendCodes{call}, heads * 2 * kLanes);
  return launch_over(run, AppendToCache{call}, heads * (call.cache.head_dim + call.cache.value_dim));
}

Status launch_few_rows(const DeviceRun& run, const PagedCall& call) {
  ACCORD_ASSIGN_OR_RETURN(const bool is_done,
                          call.cache.dtype == DType::kFloat32    ? launch_decoding<DType::kFloat32>(run, call)
                          : call.cache.dtype == DType::kBFloat16 ? launch_decoding<DType::kBFloat16>(run, call)
                                                                 : launch_decoding<DType::kInt8>(run, call));
  if (!is_done) ACCORD_RETURN_IF_ERROR(launch_slow(run, call, 1));
  if (call.splits == 1) return Status();
  return launch_over(run, CombineSplits{call},  // each lane of a warp computes one element
                     call.rows * call.heads * quotient_of_blocks(call.cache.value_dim, kLanes) * kLanes);
}

Status launch_many_rows(const DeviceRun& run, PagedCall call, int tile_rows) {
  call.rows_of = RowsOf::kLongSequences;
  call.splits = 1;
  ACCORD_ASSIGN_OR_RETURN(const bool is_done, launch_on_tensor_cores(run, call));
  return is_done ? Status() : launch_slow(run, call, tile_rows);
}

// A sequence has few rows if their queries over one key head fill no more than one warp's part of a tile; without
// tensor cores, no more than a tile.
int few_rows(const PagedCall& call) {
  return std::max((tile_dim(call) > 0 ? kQueriesOfWarp : kMostQueries) / call.heads_together(), 1);
}

// The kernels learn from the tables of the batch which rows belong to short sequences, so that one graph serves any
// sequences with the same number of rows in total.
Status run_cached_attention(const CachedAttention& attention, const Execution& execution) {
  const DeviceRun& run = device_run(execution);
  PagedCall call = attention.call;
  call.cache = run.cache->layer(attention.layer);
  call.batch = run.batch;
  call.q.data = execution.address(attention.q);
  call.output.data = execution.address(attention.output);
  AppendCall append{call.cache, call.batch, call.rows, rows_of_heads(attention.k), rows_of_heads(attention.v)};
  append.keys.data = execution.address(attention.k);
  append.values.data = execution.address(attention.v);
  ACCORD_RETURN_IF_ERROR(launch_append(run, append));
  call.few_rows = few_rows(call);
  call.splits = static_cast<int>(splits_of(call, run.cache->options()));
  if (call.splits > 1) call.partial = execution.data<float>(*attention.partial);
  ACCORD_RETURN_IF_ERROR(launch_few_rows(run, call));
  return call.rows > call.few_rows ? launch_many_rows(run, call, attention.tile_rows) : Status();
}

Status prepare_cached_attention(Preparation& op) {
  CachedAttention attention;
  ACCORD_ASSIGN_OR_RETURN(attention.q, heads_argument(op, "query"));
  ACCORD_ASSIGN_OR_RETURN(attention.k, heads_argument(op, "key"));
  ACCORD_ASSIGN_OR_RETURN(attention.v, heads_argument(op, "value"));
  const Tensor& q = attention.q;
  const Tensor& k = attention.k;
  const Tensor& v = attention.v;
  const bool fits = k.size(2) == q.size(2) && v.size(2) == q.size(2) && v.size(1) == k.size(1) &&
                    k.size(3) == q.size(3) && k.size(1) > 0 && q.size(1) > 0 && q.size(1) % k.size(1) == 0;
  if (!fits) return op.corrupt("query, key and value do not fit each other");
  PagedCall& call = attention.call;
  ACCORD_ASSIGN_OR_RETURN(attention.layer, op.integer("layer"));
  ACCORD_ASSIGN_OR_RETURN(const double scale, op.real("scale"));
  ACCORD_ASSIGN_OR_RETURN(call.window, op.integer("window", 0));
  ACCORD_ASSIGN_OR_RETURN(const double softcap, op.real("softcap", 0.0));
  if (call.window < 0 || softcap < 0) return op.corrupt("a negative window or softcap");
  call.scale = static_cast<float>(scale);
  call.softcap = static_cast<float>(softcap);
  call.rows = q.size(2);
  call.heads = q.size(1);
  call.q = rows_of_heads(q);
  ACCORD_RETURN_IF_ERROR(op.take_batch_rows(call.rows));
  ACCORD_ASSIGN_OR_RETURN(attention.output, op.make(0, {1, q.size(2), q.size(1), v.size(3)}));
  call.output = {nullptr, attention.output.dtype, attention.output.stride(1), attention.output.stride(2)};
  const std::int64_t heads_together = q.size(1) / k.size(1);
  attention.tile_rows = tile_rows(heads_together, k.size(3), v.size(3));
  if (attention.tile_rows == 0) return op.unsupported("its heads are too large for the kernel of GPUs");
  // The number of parts must not depend on how many of the heads this rank has.
  const std::int64_t splits =
      op.is_canonical() ? splits_of(call.rows, 1, 1) : splits_of(call.rows, k.size(1), heads_together);
  call.splits = static_cast<int>(splits);
  if (splits > 1) {
    ACCORD_ASSIGN_OR_RETURN(attention.partial,
                            op.scratch(DType::kFloat32, {call.rows, call.heads, splits, v.size(3) + 2}));
  }
  Step step = [attention](const Execution& execution) { return run_cached_attention(attention, execution); };
  op.step_always(step, [&] { return step; });
  return Status();
}

// Rows of the tables are tokens; all heads of a token use the same row.
Status prepare_rotary(Preparation& op) {
  ACCORD_ASSIGN_OR_RETURN(const Tensor x, heads_argument(op, "input"));
  ACCORD_ASSIGN_OR_RETURN(const Tensor cos, heads_argument(op, "cos"));
  ACCORD_ASSIGN_OR_RETURN(const Tensor sin, heads_argument(op, "sin"));
  const Sizes table = {1, 1, x.size(2), x.size(3)};
  if (cos.sizes() != table || sin.sizes() != table || x.size(3) % 2 != 0) return op.corrupt("its tables do not fit");
  static constexpr int kTokensFirst[] = {0, 2, 1, 3};
  ACCORD_ASSIGN_OR_RETURN(const Tensor y, op.make_ordered(0, x.sizes(), kTokensFirst));
  const Rotary kernel{x.size(2),          x.size(1),          x.size(3),       rows_of_heads(x),
                      rows_of_heads(cos), rows_of_heads(sin), rows_of_heads(y)};
  Step step = [=](const Execution& execution) {
    Rotary placed = kernel;
    placed.x.data = execution.address(x);
    placed.cos.data = execution.address(cos);
    placed.sin.data = execution.address(sin);
    placed.y.data = execution.address(y);
    return launch_over(device_run(execution), placed, x.count());
  };
  op.step_always(step, [&] { return step; });
  return Status();
}

// [heads, length, dim] counts as a batch of one.
Result<Tensor> with_batch(Preparation& op, std::string_view name) {
  ACCORD_ASSIGN_OR_RETURN(Tensor tensor, op.tensor(name));
  if (tensor.dims() == 3) {
    const Sizes sizes = {1, tensor.size(0), tensor.size(1), tensor.size(2)};
    const Sizes strides = {0, tensor.stride(0), tensor.stride(1), tensor.stride(2)};
    tensor.layout = kernels::strided_layout(sizes, strides);
  }
  if (tensor.dims() != 4) return op.unsupported("attention has a kernel for 3 or 4 dimensions");
  return floats_of(op, tensor);
}

/// A call of attention, without addresses.
struct Attention {
  Tensor q, k, v, output;
  std::optional<Tensor> mask;
  WholeAttention kernel;
};

Status set_mask(Preparation& op, Attention& attention) {
  WholeAttention& kernel = attention.kernel;
  ACCORD_ASSIGN_OR_RETURN(attention.mask, op.maybe_tensor("attn_mask"));
  if (!attention.mask) return Status();
  Tensor& mask = *attention.mask;
  ACCORD_RETURN_IF_ERROR(op.require(mask, {DType::kFloat32, DType::kBFloat16, DType::kFloat16, DType::kBool}));
  const Sizes scores = {kernel.batch, kernel.heads, kernel.q_len, kernel.k_len};
  ACCORD_ASSIGN_OR_RETURN(mask.layout, kernels::broadcast_layout(mask.layout, scores));
  kernel.mask_is = mask.dtype == DType::kBool ? WholeAttention::Mask::kBool : WholeAttention::Mask::kAdditive;
  kernel.mask.dtype = mask.dtype;
  std::copy_n(mask.layout.strides.begin(), 4, kernel.mask.strides);
  return Status();
}

Status run_attention(const Attention& attention, const Execution& execution) {
  WholeAttention kernel = attention.kernel;
  kernel.q.data = execution.address(attention.q);
  kernel.k.data = execution.address(attention.k);
  kernel.v.data = execution.address(attention.v);
  kernel.output.data = execution.address(attention.output);
  if (attention.mask) kernel.mask.data = execution.address(*attention.mask);
  const DeviceRun& run = device_run(execution);
  ACCORD_ASSIGN_OR_RETURN(const bool is_done, kernel.q.dtype == DType::kFloat16
                                                  ? launch_on_tensor_cores<DType::kFloat16>(run, kernel)
                                                  : launch_on_tensor_cores<DType::kBFloat16>(run, kernel));
  if (is_done) return Status();
  const AttendSizes sizes{kernel.tile_rows * static_cast<int>(kernel.heads / kernel.kv_heads),
                          static_cast<int>(kernel.head_dim), static_cast<int>(kernel.value_dim)};
  const std::int64_t tiles = quotient_of_blocks(kernel.q_len, kernel.tile_rows);
  return launch_blocks(run, kernel, kernel.batch * kernel.kv_heads * tiles, attend_bytes(sizes));
}

Status prepare_attention(Preparation& op) {
  Attention attention;
  WholeAttention& kernel = attention.kernel;
  ACCORD_ASSIGN_OR_RETURN(attention.q, with_batch(op, "query"));
  ACCORD_ASSIGN_OR_RETURN(attention.k, with_batch(op, "key"));
  ACCORD_ASSIGN_OR_RETURN(attention.v, with_batch(op, "value"));
  const Tensor& q = attention.q;
  const Tensor& k = attention.k;
  const Tensor& v = attention.v;
  kernel.batch = q.size(0);
  kernel.heads = q.size(1);
  kernel.kv_heads = k.size(1);
  kernel.q_len = q.size(2);
  kernel.k_len = k.size(2);
  kernel.head_dim = q.size(3);
  kernel.value_dim = v.size(3);
  const bool fits = k.size(0) == kernel.batch && v.size(0) == kernel.batch && v.size(1) == kernel.kv_heads &&
                    v.size(2) == kernel.k_len && k.size(3) == kernel.head_dim && kernel.kv_heads > 0 &&
                    kernel.heads > 0 && kernel.heads % kernel.kv_heads == 0;
  if (!fits) return op.corrupt("query, key and value do not fit each other");
  ACCORD_ASSIGN_OR_RETURN(const bool grouped, op.flag("enable_gqa", false));
  if (kernel.heads != kernel.kv_heads && !grouped)
    return op.corrupt("fewer key heads than query heads without enable_gqa");
  ACCORD_ASSIGN_OR_RETURN(const double dropout, op.real("dropout_p", 0.0));
  if (dropout != 0.0) return op.unsupported("dropout; export the model in eval mode");
  ACCORD_ASSIGN_OR_RETURN(kernel.causal, op.flag("is_causal", false));
  ACCORD_ASSIGN_OR_RETURN(const double scale, op.real("scale", 1.0 / std::sqrt(static_cast<double>(kernel.head_dim))));
  kernel.scale = static_cast<float>(scale);
  ACCORD_RETURN_IF_ERROR(set_mask(op, attention));
  kernel.tile_rows = tile_rows(kernel.heads / kernel.kv_heads, kernel.head_dim, kernel.value_dim);
  if (kernel.tile_rows == 0) return op.unsupported("its heads are too large for the kernel of GPUs");

  ACCORD_ASSIGN_OR_RETURN(const Tensor query, op.tensor("query"));
  const Sizes sizes = {kernel.batch, kernel.heads, kernel.q_len, kernel.value_dim};
  static constexpr int kBatchLengthHeadsDim[] = {0, 2, 1, 3};
  if (query.dims() == 4) {
    ACCORD_ASSIGN_OR_RETURN(attention.output, op.make_ordered(0, sizes, kBatchLengthHeadsDim));
  } else {
    ACCORD_ASSIGN_OR_RETURN(attention.output, op.make(0, {kernel.heads, kernel.q_len, kernel.value_dim}));
    attention.output.layout = kernels::contiguous_layout(sizes);
  }
  kernel.q = rows_of_heads(q);
  kernel.k = rows_of_heads(k);
  kernel.v = rows_of_heads(v);
  kernel.output = rows_of_heads(attention.output);
  kernel.q_batch_stride = q.stride(0);
  kernel.k_batch_stride = k.stride(0);
  kernel.v_batch_stride = v.stride(0);
  kernel.output_batch_stride = attention.output.stride(0);
  Step step = [attention](const Execution& execution) { return run_attention(attention, execution); };
  op.step_always(step, [&] { return step; });
  return Status();
}

constexpr OpEntry kAttentionOps[] = {
    {kCachedAttention, prepare_cached_attention},
    {"accord.rotary", prepare_rotary},
    {"aten.scaled_dot_product_attention.default", prepare_attention},
};

}  // namespace

std::span<const OpEntry> device_attention_ops() { return kAttentionOps; }

}  // namespace accord::engine
