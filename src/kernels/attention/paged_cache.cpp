#include "kernels/attention/paged_cache.hpp"

#include <algorithm>
#include <cmath>

#include "kernels/elementwise/row_kernels.hpp"

namespace accord::kernels {

namespace {

constexpr std::int64_t kBlock = 128;

std::size_t cache_bytes(const PagedCache& cache, std::int64_t dim) {
  return static_cast<std::size_t>(cache.blocks * cache.kv_heads * cache.piece_bytes(dim));
}

// Writes the codes of `count` floats to every `stride`-th element and returns their scale. A NaN or an infinity in
// the row makes the scale NaN.
float write_codes(const float* from, std::int64_t count, std::int8_t* to, std::int64_t stride) {
  float most = 0.0F;
  bool finite = true;
  for (std::int64_t i = 0; i < count; ++i) {
    most = std::max(most, std::fabs(from[i]));
    finite = finite && std::isfinite(from[i]);
  }
  const float scale = finite ? most / 127.0F : __builtin_nanf("");
  for (std::int64_t i = 0; i < count; ++i) {
    // Clamp, because rounding may halve a denormal scale.
    to[i * stride] = scale > 0.0F
                         ? static_cast<std::int8_t>(std::clamp(std::nearbyintf(from[i] / scale), -127.0F, 127.0F))
                         : std::int8_t{0};
  }
  return scale;
}

// Writes `count` floats, rounded to bfloat16, to every `stride`-th element.
void write_halves(const float* from, std::int64_t count, std::uint16_t* to, std::int64_t stride) {
  std::uint16_t halves[kBlock];
  for (std::int64_t first = 0; first < count; first += kBlock) {
    const std::int64_t many = std::min(kBlock, count - first);
    convert_between(DType::kFloat32, from + first, DType::kBFloat16, halves, many);
    for (std::int64_t i = 0; i < many; ++i) to[(first + i) * stride] = halves[i];
  }
}

// Writes `count` floats of token `token` to every `stride`-th element of a piece, starting at element `at`. `dim` is
// the piece's number of elements per token.
void write_row(const PagedCache& cache, const float* from, std::int64_t count, std::byte* piece, std::int64_t dim,
               std::int64_t token, std::int64_t at, std::int64_t stride) {
  switch (cache.dtype) {
    case DType::kFloat32: {
      float* to = reinterpret_cast<float*>(piece) + at;
      for (std::int64_t i = 0; i < count; ++i) to[i * stride] = from[i];
      return;
    }
    case DType::kInt8: {
      const float scale = write_codes(from, count, reinterpret_cast<std::int8_t*>(piece) + at, stride);
      reinterpret_cast<float*>(piece + cache.block_tokens * dim)[token] = scale;
      return;
    }
    default: return write_halves(from, count, reinterpret_cast<std::uint16_t*>(piece) + at, stride);
  }
}

}  // namespace

std::size_t key_bytes(const PagedCache& cache) { return cache_bytes(cache, cache.key_width()); }
std::size_t value_bytes(const PagedCache& cache) {
  return cache.value_place == ValuePlace::kInKeys ? 0 : cache_bytes(cache, cache.value_width());
}

void append_to_cache(const PagedCache& cache, const SequenceRows& rows, const ConstTokenRows& keys,
                     const ConstTokenRows& values, std::int64_t first_head, std::int64_t heads) {
  for (std::int64_t row = 0; row < rows.rows; ++row) {
    const std::int64_t token = rows.context + row;
    const std::int64_t block = rows.blocks[static_cast<std::size_t>(token / cache.block_tokens)];
    const std::int64_t in_block = token % cache.block_tokens;
    const std::int64_t group = in_block / kTokenGroup * kTokenGroup;
    const std::int64_t key_width = cache.key_width(), width = cache.value_width();
    for (std::int64_t head = first_head; head < first_head + heads; ++head) {
      const std::int64_t piece = block * cache.kv_heads + head;
      const float* const key = keys.data + row * keys.row_stride + head * keys.head_stride;
      std::byte* const piece_of_keys = cache.keys + piece * cache.piece_bytes(key_width);
      if (cache.value_place == ValuePlace::kInKeys) {
        write_row(cache, key, cache.head_dim, piece_of_keys, key_width, in_block, in_block * key_width, 1);
        continue;
      }
      write_row(cache, key, cache.head_dim, piece_of_keys, key_width, in_block,
                group * key_width + in_block % kTokenGroup, kTokenGroup);
      write_row(cache, values.data + row * values.row_stride + head * values.head_stride, cache.value_dim,
                cache.values + piece * cache.piece_bytes(width), width, in_block, in_block * width, 1);
    }
  }
}

}  // namespace accord::kernels
