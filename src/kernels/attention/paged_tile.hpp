#pragma once
// A few queries of paged attention that are computed together, and where their keys and values are.

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/attention/paged_attention.hpp"

namespace accord::kernels {

constexpr std::int64_t kMaxQueries = 8;  // per tile
constexpr std::int64_t kChunkTokens = 256;
constexpr std::int64_t kRowChunkTokens = 64;  // of keys that are rows: they stay in a core's own cache

/// Up to eight queries of one key head: query i is row first_row + i / group and query head first_head + i % group.
/// Tokens are those of the call's part, counted from 0.
struct Tile {
  const PagedAttentionCall* call = nullptr;
  const SequenceRows* rows = nullptr;
  std::int64_t kv_head = 0, first_row = 0, first_head = 0, group = 0;
  std::int64_t queries = 0;
  std::int64_t begin = 0, end = 0;  // tokens that any of its queries attends
  std::int64_t chunk = 0;           // the first token of the current chunk
  float* scores = nullptr;          // [queries][kChunkTokens]
  float* q = nullptr;               // [queries][key_width], padded with zeros
  float* output = nullptr;          // [queries][value_width]
  float maximum[kMaxQueries] = {};
  float sum[kMaxQueries] = {};

  std::int64_t head_of(std::int64_t query) const { return first_head + query % group; }
  std::int64_t position_of(std::int64_t query) const { return rows->context + first_row + query / group; }
  std::int64_t tokens_before(std::int64_t position) const {
    const TokenPart& part = call->part;
    if (part.parts == 1) return position;
    const std::int64_t block = part.parts * part.tokens;
    return position / block * part.tokens +
           std::clamp<std::int64_t>(position % block - part.part * part.tokens, 0, part.tokens);
  }
  std::int64_t end_of(std::int64_t query) const {
    return tokens_before(call->tokens_of_all > 0 ? call->tokens_of_all : position_of(query) + 1);
  }
  std::int64_t begin_of(std::int64_t query) const {
    const std::int64_t own = position_of(query);
    const std::int64_t of_window = call->window > 0 ? std::max<std::int64_t>(0, own + 1 - call->window) : 0;
    return tokens_before(std::max(of_window, call->chunk > 0 ? own / call->chunk * call->chunk : 0));
  }
  std::int64_t position_of_token(std::int64_t token) const {
    const TokenPart& part = call->part;
    if (part.parts == 1) return token;
    return (token / part.tokens * part.parts + part.part) * part.tokens + token % part.tokens;
  }
  // Tokens of the part in each block.
  std::int64_t block_tokens() const { return call->part.parts == 1 ? call->cache.block_tokens : call->part.tokens; }
  // Returns the place of `token` in its block of the cache.
  std::int64_t place_of(std::int64_t token) const {
    const TokenPart& part = call->part;
    return part.parts == 1 ? token % call->cache.block_tokens
                           : (part.part - part.first) * part.tokens + token % part.tokens;
  }
  // Returns the piece of the keys or the values that holds `token`.
  const std::byte* piece_of(const std::byte* memory, std::int64_t dim, std::int64_t token) const {
    const PagedCache& cache = call->cache;
    const std::int64_t block = rows->blocks[static_cast<std::size_t>(token / block_tokens())];
    return memory + (block * cache.kv_heads + kv_head) * cache.piece_bytes(dim);
  }
  // Returns the scales of the 16 tokens starting at `token`, for int8 elements.
  const float* scales_of(const std::byte* memory, std::int64_t dim, std::int64_t token) const {
    const std::byte* const codes = piece_of(memory, dim, token);
    return reinterpret_cast<const float*>(codes + call->cache.block_tokens * dim) + place_of(token);
  }
};

}  // namespace accord::kernels
