// In memory, layers follow one another: the keys of all blocks, then their values, then, for int8, the scales of
// both. A batch is sent in one copy: a place for each row, the first rows of the
// sequences, then all tables.
#include "engine/gpu/cache.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/rounding.hpp"

namespace accord::engine {
namespace {

constexpr std::size_t kCacheAlignment = 256;

// Bytes of the keys, or of the values, of one block: all its tokens and heads.
std::size_t piece_bytes(const DeviceCacheLayer& layer, std::int64_t dim) {
  return static_cast<std::size_t>(layer.block_tokens * layer.kv_heads * dim) * size_of(layer.dtype);
}
// Returns where the tables begin in the memory of a batch of up to `rows` rows.
std::size_t tables_offset(std::size_t rows) { return rows * sizeof(RowPlace) + (rows + 1) * sizeof(std::int32_t); }

BatchKind kind_of(std::span<const BatchRows> batch) {
  const auto have = [&](auto suits) {
    return std::all_of(batch.begin(), batch.end(), [&](const BatchRows& each) { return suits(each.rows.rows); });
  };
  if (have([](std::int64_t rows) { return rows == 1; })) return BatchKind::kSingleRows;
  if (have([](std::int64_t rows) { return rows > kMostFewRows; })) return BatchKind::kManyRows;
  return BatchKind::kMixed;
}

// Bytes of the scales of the keys, or of the values, of one block.
std::size_t scales_bytes(const DeviceCacheLayer& layer) {
  if (layer.dtype != DType::kInt8) return 0;
  return static_cast<std::size_t>(layer.block_tokens * layer.kv_heads) * sizeof(float);
}

}  // namespace

Result<DeviceCache> DeviceCache::create(std::span<const CachedLayer> layers, const KeyValueCacheOptions& options,
                                        device::Runtime& runtime, Device device) {
  ACCORD_RETURN_IF_ERROR(check(options));
  DeviceCache cache;
  cache.options_ = options;
  const auto blocks = static_cast<std::size_t>(options.blocks);
  std::size_t bytes = 0;
  for (const CachedLayer& layer : layers) {
    DeviceCacheLayer made;
    made.dtype = options.dtype;
    made.block_tokens = options.block_tokens;
    made.kv_heads = layer.kv_heads;
    made.head_dim = layer.head_dim;
    made.value_dim = layer.value_dim;
    made.values_in_keys = layer.value_place == kernels::ValuePlace::kInKeys;
    bytes += round_up(blocks * piece_bytes(made, made.head_dim), kCacheAlignment);
    if (!made.values_in_keys) bytes += round_up(blocks * piece_bytes(made, made.value_dim), kCacheAlignment);
    bytes += (made.values_in_keys ? 1 : 2) * round_up(blocks * scales_bytes(made), kCacheAlignment);
    cache.layers_.emplace(layer.layer, made);
  }
  ACCORD_ASSIGN_OR_RETURN(cache.memory_,
                          device::Memory::allocate(runtime, device, bytes, "the cache of keys and values"));
  std::byte* at = cache.memory_.data();
  for (auto& [number, layer] : cache.layers_) {
    const auto take = [&](std::size_t bytes_of_block) {
      return std::exchange(at, at + round_up(blocks * bytes_of_block, kCacheAlignment));
    };
    layer.keys = take(piece_bytes(layer, layer.head_dim));
    layer.values = layer.values_in_keys ? layer.keys : take(piece_bytes(layer, layer.value_dim));
    if (layer.dtype != DType::kInt8) continue;
    layer.key_scales = reinterpret_cast<float*>(take(scales_bytes(layer)));
    layer.value_scales = layer.values_in_keys ? layer.key_scales : reinterpret_cast<float*>(take(scales_bytes(layer)));
  }
  return cache;
}

Status DeviceCache::copy_block(std::int32_t from, std::int32_t to, device::Runtime& runtime, Device device,
                               Stream stream) const {
  for (const auto& [number, layer] : layers_) {
    const std::size_t scales = scales_bytes(layer);
    for (const auto& [memory, bytes] :
         {std::pair{layer.keys, piece_bytes(layer, layer.head_dim)},
          std::pair{layer.values, layer.values_in_keys ? 0 : piece_bytes(layer, layer.value_dim)},
          std::pair{static_cast<void*>(layer.key_scales), scales},
          std::pair{static_cast<void*>(layer.value_scales), layer.values_in_keys ? 0 : scales}}) {
      if (bytes == 0) continue;
      auto* const all = static_cast<std::byte*>(memory);
      ACCORD_RETURN_IF_ERROR(runtime.copy(all + static_cast<std::size_t>(to) * bytes,
                                          all + static_cast<std::size_t>(from) * bytes, bytes, device, stream));
    }
  }
  return Status();
}

Result<bool> DeviceBatch::set(std::span<const BatchRows> batch, device::Runtime& runtime, Device device,
                              Stream stream) {
  std::size_t rows = 0, blocks = 0;
  for (const BatchRows& sequence : batch) {
    rows += static_cast<std::size_t>(sequence.rows.rows);
    blocks += sequence.rows.blocks.size();
  }
  const bool grows = rows > rows_ || blocks > blocks_;
  if (grows) {
    const std::size_t more_rows = std::max(rows, rows_ * 2), more_blocks = std::max(blocks, blocks_ * 2);
    const std::size_t more_bytes = tables_offset(more_rows) + more_blocks * sizeof(std::int32_t);
    constexpr const char* kWhat = "the tables of a batch";
    for (device::Memory* const memory : {&memory_, &staged_})
      outgrown_.push_back(std::exchange(*memory, device::Memory()));
    rows_ = blocks_ = 0;  // in case an allocation fails
    ACCORD_ASSIGN_OR_RETURN(memory_, device::Memory::allocate(runtime, device, more_bytes, kWhat));
    ACCORD_ASSIGN_OR_RETURN(staged_, device::Memory::allocate_host(runtime, device, more_bytes, kWhat));
    rows_ = more_rows;
    blocks_ = more_blocks;
    tables_.rows = reinterpret_cast<const RowPlace*>(memory_.data());
    tables_.sequences = reinterpret_cast<const std::int32_t*>(memory_.data() + rows_ * sizeof(RowPlace));
    tables_.tables = reinterpret_cast<const std::int32_t*>(memory_.data() + tables_offset(rows_));
    moved_ = true;
  }
  kind_ = kind_of(batch);
  if (memory_.size() == 0) return false;
  const std::size_t bytes = tables_offset(rows_) + blocks * sizeof(std::int32_t);
  auto* place = reinterpret_cast<RowPlace*>(staged_.data());
  auto* const sequences = reinterpret_cast<std::int32_t*>(staged_.data() + rows_ * sizeof(RowPlace));
  std::byte* const tables = staged_.data() + tables_offset(rows_);
  std::size_t table = 0;
  sequences[0] = 0;
  for (const BatchRows& part : batch) {
    const kernels::SequenceRows& sequence = part.rows;
    if (sequence.rows > 0) sequences[++sequences[0]] = static_cast<std::int32_t>(part.first_row);
    for (std::int64_t row = 0; row < sequence.rows; ++row) {
      *place++ = {static_cast<std::int32_t>(sequence.context + row), static_cast<std::int32_t>(table),
                  static_cast<std::int32_t>(sequence.rows)};
    }
    std::memcpy(tables + table * sizeof(std::int32_t), sequence.blocks.data(), sequence.blocks.size_bytes());
    table += sequence.blocks.size();
  }
  ACCORD_RETURN_IF_ERROR(runtime.copy(memory_.data(), staged_.data(), bytes, device, stream));
  return std::exchange(moved_, false);
}

}  // namespace accord::engine
