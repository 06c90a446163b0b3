// The kernels learn from the tables of the batch which rows belong to short sequences, so one graph serves any
// sequences with the same number of rows, as far as they are of one kind (BatchKind). Sizes of launches come from the
// program's shape and from the kind, not from the lengths of sequences, which a graph does not learn.
#include "engine/gpu/paged_attention.hpp"

#include <algorithm>
#include <limits>

#include "base/rounding.hpp"
#include "engine/gpu/heads.hpp"
#include "engine/gpu/kernels/decoding_kernel.hpp"
#include "engine/gpu/kernels/decoding_tiles.hpp"
#include "engine/gpu/kernels/tile_attention_kernels.hpp"
#include "engine/gpu/tile_launch.hpp"

namespace accord::engine::gpu {
namespace {

// If there are few rows, each one reads its context by itself. That work is divided among blocks until there are
// enough of them for any GPU.
constexpr int kTargetBlocks = 512, kMaxParts = 64;
// With canonical ranks: for one sequence, whatever the number of heads. Not more than the partial results of a model of
// many heads have room for.
constexpr int kCanonicalParts = 128;
// Sequences of a mixed batch for which a launch has blocks. With more sequences each block loops.
constexpr std::int64_t kExpectedSequences = 64;
// Fewer query heads per key head leave most of a tensor core's tile empty, and need no more time without one.
constexpr int kMinTileHeads = 4;

// Returns how many query heads of one key head a block takes without tensor cores. 8 heads over words of 8 elements
// would need so many registers that a multiprocessor holds one block only.
std::int64_t heads_of_block(std::int64_t heads_per_kv_head, DType cache) {
  if (heads_per_kv_head == 1) return 1;
  return heads_per_kv_head <= 4 || cache != DType::kFloat32 ? 4 : 8;
}

// Returns the largest number of blocks that is worth launching for `works` works of which most may be empty.
std::int64_t blocks_for(const DeviceRun& run, std::int64_t works) {
  constexpr std::int64_t kOfMultiprocessor = 8;
  return run.batch_kind == BatchKind::kMixed ? std::min(works, run.multiprocessors * kOfMultiprocessor) : works;
}

/// Returns false if the cache's rows do not suit the kernel.
template <DType kDType, int kQueries>
Result<bool> launch_decoding(const DeviceRun& run, const PagedCall& call) {
  using Kernel = DecodingAttention<kDType, kQueries>;
  const DeviceCacheLayer& cache = call.cache;
  for (const std::int64_t size : {cache.head_dim, cache.value_dim, cache.value_stride()})
    if (size % Kernel::kEach != 0) return false;
  const std::size_t bytes = Kernel::shared_bytes(cache.head_dim, cache.value_dim, call.most_parts);
  if (bytes > kMaxSharedBytes) return false;
  const Kernel kernel{call};
  ACCORD_RETURN_IF_ERROR(launch_blocks(run, kernel, blocks_for(run, kernel.works()), bytes));
  return true;
}
template <DType kDType>
Result<bool> launch_decoding(const DeviceRun& run, const PagedCall& call) {
  const std::int64_t heads = heads_of_block(call.heads_per_kv_head(), kDType);
  if (heads == 1) return launch_decoding<kDType, 1>(run, call);
  if constexpr (kDType == DType::kFloat32) {
    if (heads == 8) return launch_decoding<kDType, 8>(run, call);
  }
  return launch_decoding<kDType, 4>(run, call);
}

Status launch_without_tensor_cores(const DeviceRun& run, const PagedCall& call) {
  PagedAttention kernel{call};
  const DeviceCacheLayer& cache = call.cache;
  kernel.tile_heads = tile_heads(call.heads_per_kv_head(), cache.head_dim, cache.value_dim);
  if (call.rows_of == RowsOf::kLongSequences)
    kernel.tile_rows = tile_rows(kernel.tile_heads, cache.head_dim, cache.value_dim);
  const AttendSizes sizes{kernel.tile_rows * kernel.tile_heads, static_cast<int>(cache.head_dim),
                          static_cast<int>(cache.value_dim)};
  const std::int64_t works = kernel.works();
  const std::int64_t blocks = call.rows_of == RowsOf::kShortSequences ? blocks_for(run, works) : works;
  return launch_blocks(run, kernel, blocks, kernel.shared_bytes(sizes, call.most_parts));
}

// The other kernels have neither sinks nor slopes.
bool needs_plain_kernel(const PagedCall& call) { return call.sinks != nullptr || call.slopes != nullptr; }

bool suits_tensor_cores(const DeviceRun& run, const PagedCall& call) {
  constexpr DType kDType = DType::kBFloat16;
  const KeyValueCacheOptions& options = run.cache->options();
  const std::int64_t cache_rows = options.blocks * options.block_tokens * call.cache.kv_heads;
  return is_in_words<kDType>(call.q) && is_in_words<kDType>(call.output) &&
         cache_rows <= std::numeric_limits<std::int32_t>::max();
}

/// The kernels on tensor cores that compute a call, by the head sizes that they are compiled for; 0: none.
struct TileKernels {
  int few_rows = 0, many_rows = 0;
};
TileKernels tile_kernels(const DeviceRun& run, const PagedCall& call) {
  const DeviceCacheLayer& cache = call.cache;
  TileKernels kernels;
  if (cache.dtype == DType::kFloat32 || cache.values_in_keys || !suits_tensor_cores(run, call) ||
      needs_plain_kernel(call))
    return kernels;
  if (call.heads_per_kv_head() >= kMinTileHeads)
    kernels.few_rows = tile_dim(cache.head_dim, cache.value_dim, {64, 96, 128, 256});
  if (cache.dtype == DType::kBFloat16) kernels.many_rows = tile_dim(cache.head_dim, cache.value_dim, {64, 128, 256});
  return kernels;
}

template <DType kCache, int kMaxDim>
Status launch_decoding_tiles(const DeviceRun& run, const PagedCall& call, const HeadsCall& heads) {
  const DecodingTiles<kCache, kMaxDim> kernel{call, {heads}};
  const std::size_t bytes = kernel.shared_bytes(call.most_parts);
  const std::int64_t sequences = call.has_single_rows ? call.rows : std::min(call.rows, kExpectedSequences);
  return launch_blocks(run, kernel, blocks_for(run, kernel.works(sequences)), bytes);
}
template <DType kCache>
Status launch_decoding_tiles(const DeviceRun& run, const PagedCall& call, const HeadsCall& heads, int dim) {
  switch (dim) {
    case 64: return launch_decoding_tiles<kCache, 64>(run, call, heads);
    case 96: return launch_decoding_tiles<kCache, 96>(run, call, heads);
    case 128: return launch_decoding_tiles<kCache, 128>(run, call, heads);
    default: return launch_decoding_tiles<kCache, 256>(run, call, heads);
  }
}

/// Whether DecodingTiles does the work on the heads: a key head is appended by one block, and no other one reads it.
bool appends_in_tiles(const PagedCall& call, const HeadsCall& heads) {
  return call.has_single_rows && TileShape(call.heads_per_kv_head(), kQueriesOfSums).groups == 1 &&
         HeadsWork<DType::kBFloat16>{heads}.has_words();
}

template <typename Kernel>
Status launch_paged_tiles(const DeviceRun& run, const PagedCall& call) {
  const Kernel kernel{call};
  const std::int64_t sequences =
      run.batch_kind == BatchKind::kManyRows ? call.rows / kMostFewRows + 1 : std::min(call.rows, kExpectedSequences);
  return launch_blocks(run, kernel, kernel.works(sequences), Kernel::Attend::shared_bytes());
}
Status launch_paged_tiles(const DeviceRun& run, const PagedCall& call, int dim) {
  if (dim == 256) return launch_paged_tiles<PagedTiles<256, 1>>(run, call);
  if (fill_high_tiles<PagedTiles<64, 2>::Attend>(call.rows * call.heads, run.multiprocessors)) {
    return dim == 64 ? launch_paged_tiles<PagedTiles<64, 2>>(run, call)
                     : launch_paged_tiles<PagedTiles<128, 2>>(run, call);
  }
  return dim == 64 ? launch_paged_tiles<PagedTiles<64, 1>>(run, call)
                   : launch_paged_tiles<PagedTiles<128, 1>>(run, call);
}

Status launch_few_rows(const DeviceRun& run, const PagedCall& call, const HeadsCall& heads, int dim) {
  const DType cache = call.cache.dtype;
  if (dim > 0) {
    return cache == DType::kInt8 ? launch_decoding_tiles<DType::kInt8>(run, call, heads, dim)
                                 : launch_decoding_tiles<DType::kBFloat16>(run, call, heads, dim);
  }
  if (needs_plain_kernel(call)) return launch_without_tensor_cores(run, call);
  ACCORD_ASSIGN_OR_RETURN(const bool is_done, cache == DType::kFloat32    ? launch_decoding<DType::kFloat32>(run, call)
                                              : cache == DType::kBFloat16 ? launch_decoding<DType::kBFloat16>(run, call)
                                                                          : launch_decoding<DType::kInt8>(run, call));
  return is_done ? Status() : launch_without_tensor_cores(run, call);
}

Status launch_many_rows(const DeviceRun& run, PagedCall call, int dim) {
  call.rows_of = RowsOf::kLongSequences;
  return dim > 0 ? launch_paged_tiles(run, call, dim) : launch_without_tensor_cores(run, call);
}

}  // namespace

int tile_rows(std::int64_t heads_per_kv_head, std::int64_t head_dim, std::int64_t value_dim) {
  for (std::int64_t rows = std::max<std::int64_t>(kMostFewRows / heads_per_kv_head, 1); rows > 0; rows /= 2) {
    const AttendSizes sizes{static_cast<int>(rows * heads_per_kv_head), static_cast<int>(head_dim),
                            static_cast<int>(value_dim)};
    if (attend_bytes(sizes) <= kMaxSharedBytes) return static_cast<int>(rows);
  }
  return 0;
}

int tile_heads(std::int64_t heads_per_kv_head, std::int64_t head_dim, std::int64_t value_dim) {
  for (std::int64_t heads = heads_per_kv_head; heads > 0; --heads) {
    if (heads_per_kv_head % heads == 0 && tile_rows(heads, head_dim, value_dim) > 0) return static_cast<int>(heads);
  }
  return 0;
}

int parts_of_one(std::int64_t kv_heads, std::int64_t heads_per_kv_head, bool is_canonical) {
  const std::int64_t wanted = is_canonical ? kCanonicalParts : ceil_divide(kTargetBlocks, kv_heads);
  // Each group of blocks counts in a word of its own. Rows have one part each if there are as many as `wanted`.
  const std::int64_t groups = kv_heads * ceil_divide(heads_per_kv_head, 4);
  return static_cast<int>(std::clamp<std::int64_t>(kArrivals / groups, 1, wanted));
}

std::int64_t partial_floats(const PagedCall& call) {
  constexpr std::int64_t kOfTile = kQueriesOfSums, kOfBlock = 8;
  PagedCall widest = call;
  widest.most_parts = kMaxParts;
  const std::int64_t heads = call.heads_per_kv_head();
  const std::int64_t queries_of_row = round_up(heads, kOfBlock);
  const std::int64_t rows_of_tile = std::max<std::int64_t>(kOfTile / heads, 1);
  const std::int64_t queries_of_tile =
      heads >= kOfTile ? round_up(heads, kOfTile) : heads * std::min(call.rows, rows_of_tile);
  const std::int64_t most_tiles =
      call.rows * ceil_divide(std::max<std::int64_t>(kMostFewRows / heads, 1), rows_of_tile);
  std::int64_t most = 0;
  if (call.rows > 0 && widest.parts_each(call.rows) > 1)
    most = call.rows * widest.parts_each(call.rows) * queries_of_row;
  for (std::int64_t tiles = 1; tiles <= most_tiles && widest.parts_each(tiles) > 1; ++tiles)
    most = std::max(most, tiles * widest.parts_each(tiles) * queries_of_tile);
  return most * call.cache.kv_heads * PartResults::floats(static_cast<int>(call.cache.value_dim));
}

Status launch_paged_attention(const DeviceRun& run, PagedCall call, const HeadsCall& heads) {
  const KeyValueCacheOptions& options = run.cache->options();
  const std::int64_t all = options.blocks * options.block_tokens;
  std::int64_t seen = all;
  for (const std::int64_t most : {call.window, call.chunk}) seen = most > 0 ? std::min(most, seen) : seen;
  call.most_parts = static_cast<int>(std::clamp<std::int64_t>(ceil_divide(seen, kMinPartTokens), 1, kMaxParts));
  call.arrived = run.arrivals;
  call.has_single_rows = run.batch_kind == BatchKind::kSingleRows;
  const TileKernels tiles = tile_kernels(run, call);
  // The queries of a short sequence over one key head fill no more than one set of Sums. They fill up to four if the
  // kernel for long sequences has no tensor cores, because that one is slower.
  const std::int64_t queries = tiles.many_rows > 0 ? kQueriesOfSums : kMostFewRows;
  call.few_rows = static_cast<int>(std::max<std::int64_t>(queries / call.heads_per_kv_head(), 1));
  if (tiles.few_rows > 0 && appends_in_tiles(call, heads)) return launch_few_rows(run, call, heads, tiles.few_rows);
  ACCORD_RETURN_IF_ERROR(launch_heads(run, heads, call.q.dtype));
  if (run.batch_kind != BatchKind::kManyRows) ACCORD_RETURN_IF_ERROR(launch_few_rows(run, call, {}, tiles.few_rows));
  if (run.batch_kind == BatchKind::kSingleRows || call.rows <= call.few_rows) return Status();
  return launch_many_rows(run, call, tiles.many_rows);
}

}  // namespace accord::engine::gpu
