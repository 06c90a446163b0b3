#pragma once
// Paged KV cache: keys and values in blocks that sequences receive as they grow.

#include <cstddef>
#include <cstdint>
#include <span>

#include "accord/buffer.hpp"
#include "base/rounding.hpp"

namespace accord::kernels {

/// Tokens stored together: keys are stored as [head_dim][16 tokens], so that 16 scores are one sum of vectors.
inline constexpr std::int64_t kTokenGroup = 16;

/// kOwn: values are stored beside the keys. kInKeys: the value of a token is the first `value_dim` elements of its key,
/// which is stored once.
enum class ValuePlace : std::uint8_t { kOwn, kInKeys };

/// One layer's keys and values, in blocks of `block_tokens` tokens of one sequence. Head h of block b is piece b *
/// kv_heads + h.
/// Layout of a piece: keys are [block_tokens / 16][head_dim][16]; values are [block_tokens][value_dim rounded up to
/// 16], padded with zeros. With ValuePlace::kInKeys there are no values, and keys are [block_tokens][head_dim rounded
/// up to 16], padded with zeros.
/// Elements are float32, bfloat16 (rounded to nearest even when written) or int8. int8 elements are codes from -127
/// to 127, rounded to nearest even. A float32 scale per token follows the codes of the piece: the token's largest
/// magnitude divided by 127, by which its codes are multiplied.
/// The memory must start as zeros.
struct PagedCache {
  std::byte* keys = nullptr;
  std::byte* values = nullptr;
  DType dtype = DType::kFloat32;
  std::int64_t blocks = 0;
  std::int64_t block_tokens = kTokenGroup;  ///< a multiple of 16
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 0;   ///< of keys and queries
  std::int64_t value_dim = 0;  ///< of values and outputs; at most head_dim if values are in keys
  ValuePlace value_place = ValuePlace::kOwn;

  std::int64_t value_width() const { return round_up(value_dim, kTokenGroup); }
  /// Elements of a token's key in the cache.
  std::int64_t key_width() const {
    return value_place == ValuePlace::kInKeys ? round_up(head_dim, kTokenGroup) : head_dim;
  }
  /// Bytes per piece whose tokens have `dim` elements each.
  std::int64_t piece_bytes(std::int64_t dim) const {
    const auto scale = static_cast<std::int64_t>(dtype == DType::kInt8 ? sizeof(float) : 0);
    return block_tokens * (dim * static_cast<std::int64_t>(size_of(dtype)) + scale);
  }
};

/// Bytes of the keys, and of the values, in all `blocks` blocks.
std::size_t key_bytes(const PagedCache& cache);
std::size_t value_bytes(const PagedCache& cache);

/// Rows of one sequence. Row i is token number `context` + i of the sequence.
struct SequenceRows {
  std::int64_t rows = 0;
  std::int64_t context = 0;              ///< tokens of the sequence before these rows, all of them in the cache
  std::span<const std::int32_t> blocks;  ///< token t is in block blocks[t / block_tokens]
};

/// [rows, heads, dim] of float32, with dim contiguous. Strides are in floats.
struct ConstTokenRows {
  const float* data = nullptr;
  std::int64_t row_stride = 0, head_stride = 0;
};

/// Writes the keys and values of `rows` into the cache, for kv heads [first_head, first_head + heads). `values` is not
/// read if values are in keys.
/// REQUIRES: the block table covers token context + rows - 1, and its numbers are below `cache.blocks`.
void append_to_cache(const PagedCache& cache, const SequenceRows& rows, const ConstTokenRows& keys,
                     const ConstTokenRows& values, std::int64_t first_head, std::int64_t heads);

}  // namespace accord::kernels
