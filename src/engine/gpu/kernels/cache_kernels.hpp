#pragma once
// The paged cache as kernels see it, and the kernels that write to it.

#include <cmath>

#include "engine/gpu/kernels/attend.hpp"

namespace accord::engine {

/// Rows [tokens, heads, dim] of floats. dim is contiguous; strides are in elements.
struct HeadRows {
  void* data = nullptr;
  DType dtype = DType::kFloat32;
  std::int64_t row_stride = 0, head_stride = 0;
  ACCORD_ON_DEVICE float at(std::int64_t row, std::int64_t head, std::int64_t d) const {
    return device::load_float(data, dtype, row * row_stride + head * head_stride + d);
  }
  ACCORD_ON_DEVICE HeadRow row(std::int64_t row, std::int64_t head, std::int64_t offset = 0) const {
    return {data, dtype, offset + row * row_stride + head * head_stride};
  }
};

/// One layer's cache on a device. Token t of head h in block b is row (b * kv_heads + h) * block_tokens + t of the
/// keys and of the values. An int8 row holds the codes and the scale that kernels::PagedCache describes.
struct DeviceCacheLayer {
  void* keys = nullptr;
  void* values = nullptr;
  DType dtype = DType::kFloat32;  ///< float32, bfloat16 or int8
  std::int64_t block_tokens = 0;
  std::int64_t kv_heads = 0, head_dim = 0, value_dim = 0;
  float *key_scales = nullptr, *value_scales = nullptr;  ///< one per row, int8 only
  ACCORD_ON_DEVICE std::int64_t row_of(const std::int32_t* table, std::int64_t head, std::int64_t token) const {
    return (std::int64_t{table[token / block_tokens]} * kv_heads + head) * block_tokens + token % block_tokens;
  }
};

/// The place of one row of a run: its token's index in its sequence, where the sequence's blocks begin in the tables,
/// and how many rows of the sequence are in the run.
struct RowPlace {
  std::int32_t token = 0;
  std::int32_t table = 0;
  std::int32_t rows = 1;
};

/// The sequences of a run, in device memory.
struct BatchTables {
  const RowPlace* rows = nullptr;
  const std::int32_t* tables = nullptr;
  const std::int32_t* sequences = nullptr;  ///< how many there are, then the first row of each

  ACCORD_ON_DEVICE int sequence_count() const { return sequences[0]; }
  ACCORD_ON_DEVICE int first_row(int sequence) const { return sequences[1 + sequence]; }
};

/// Writes the keys and values of `rows` rows into the cache.
struct AppendCall {
  DeviceCacheLayer cache;
  BatchTables batch;
  std::int64_t rows = 0;
  HeadRows keys, values;

  ACCORD_ON_DEVICE std::int64_t row_in_cache(std::int64_t row, std::int64_t head) const {
    const RowPlace place = batch.rows[row];
    return cache.row_of(batch.tables + place.table, head, place.token);
  }
};

/// Writes to a cache of floats.
struct AppendToCache : AppendCall {
  static constexpr const char* kName = "engine_append_to_cache";
  static constexpr int kThreads = 256;

  template <typename Block>
  ACCORD_ON_DEVICE void operator()(Block& block) const {
    const std::int64_t both = cache.head_dim + cache.value_dim;
    const auto count = static_cast<std::size_t>(rows * cache.kv_heads * both);
    for (std::size_t i = block.first(); i < count; i += block.stride()) {
      const auto index = static_cast<std::int64_t>(i);
      const std::int64_t d = index % both, head = index / both % cache.kv_heads, row = index / both / cache.kv_heads;
      const std::int64_t to = row_in_cache(row, head);
      if (d < cache.head_dim) {
        device::store_float(cache.keys, cache.dtype, to * cache.head_dim + d, keys.at(row, head, d));
      } else {
        const std::int64_t v = d - cache.head_dim;
        device::store_float(cache.values, cache.dtype, to * cache.value_dim + v, values.at(row, head, v));
      }
    }
  }
};

/// Writes to an int8 cache. Each warp writes one head of one key or value.
struct AppendCodes : AppendCall {
  static constexpr const char* kName = "engine_append_codes";
  static constexpr int kThreads = 256;

  template <typename Block>
  ACCORD_ON_DEVICE void operator()(Block& block) const {
    const std::int64_t works = rows * cache.kv_heads * 2;
    const auto warps = static_cast<std::int64_t>(block.stride()) / block.lanes();
    for (std::int64_t work = static_cast<std::int64_t>(block.first()) / block.lanes(); work < works; work += warps) {
      const std::int64_t head = work / 2 % cache.kv_heads, row = work / 2 / cache.kv_heads;
      const std::int64_t to = row_in_cache(row, head);
      if (work % 2 == 0) {
        write(block, keys.row(row, head), cache.head_dim, static_cast<std::int8_t*>(cache.keys), cache.key_scales, to);
      } else {
        write(block, values.row(row, head), cache.value_dim, static_cast<std::int8_t*>(cache.values),
              cache.value_scales, to);
      }
    }
  }

 private:
  /// Rounds as the CPU does. `to`: the row of the cache.
  template <typename Block>
  ACCORD_ON_DEVICE static void write(Block& block, const HeadRow& from, std::int64_t dim, std::int8_t* codes,
                                     float* scales, std::int64_t to) {
    float largest = 0.0F;
    for (std::int64_t d = block.lane(); d < dim; d += block.lanes()) {
      const float size = fabsf(device::load_float(from.data, from.dtype, from.first + d));
      largest = fmaxf(largest, size < INFINITY ? size : INFINITY);  // NaN counts as infinity
    }
    largest = block.warp_max(largest);
    const float scale = largest < INFINITY ? largest / 127.0F : NAN;
    for (std::int64_t d = block.lane(); d < dim; d += block.lanes()) {
      const float x = rintf(device::load_float(from.data, from.dtype, from.first + d) / scale);
      // A denormal scale may be as small as half its exact value, hence the clamp.
      codes[to * dim + d] = scale > 0.0F ? static_cast<std::int8_t>(fminf(fmaxf(x, -127.0F), 127.0F)) : std::int8_t{0};
    }
    if (block.lane() == 0) scales[to] = scale;
  }
};

}  // namespace accord::engine
