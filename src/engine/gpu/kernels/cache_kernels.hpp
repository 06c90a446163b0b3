#pragma once
// The paged cache and the rows of heads as kernels see them.

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
/// keys and of the values. An int8 row holds the codes and the scale that kernels::PagedCache describes. If values
/// are in keys (kernels::ValuePlace), `values` and `value_scales` are those of the keys.
struct DeviceCacheLayer {
  void* keys = nullptr;
  void* values = nullptr;
  DType dtype = DType::kFloat32;  ///< float32, bfloat16 or int8
  std::int64_t block_tokens = 0;
  std::int64_t kv_heads = 0, head_dim = 0, value_dim = 0;
  float *key_scales = nullptr, *value_scales = nullptr;  ///< one per row, int8 only
  bool values_in_keys = false;

  /// Returns the elements from row to row of the values.
  ACCORD_ON_DEVICE std::int64_t value_stride() const { return values_in_keys ? head_dim : value_dim; }
  ACCORD_ON_DEVICE std::int64_t row_of(const std::int32_t* table, std::int64_t head, std::int64_t token) const {
    // Both fit into 32 bits, whose division takes a fraction of the instructions.
    const auto at = static_cast<std::uint32_t>(token), tokens = static_cast<std::uint32_t>(block_tokens);
    return (std::int64_t{table[at / tokens]} * kv_heads + head) * block_tokens + at % tokens;
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

}  // namespace accord::engine
