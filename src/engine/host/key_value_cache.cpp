// One region holds, for each layer in turn, the keys of all blocks followed by their values, then the states.
#include "engine/host/key_value_cache.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "engine/graph/node_access.hpp"
#include "engine/graph/ops.hpp"

namespace accord::engine {
namespace {

constexpr std::size_t kAlignment = 64;

std::size_t aligned(std::size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

std::size_t state_bytes(std::int64_t floats, std::int64_t blocks) {
  return static_cast<std::size_t>(floats * blocks) * sizeof(float);
}

}  // namespace

Result<KeyValueCache> KeyValueCache::create(const CachedParts& parts, const KeyValueCacheOptions& options) {
  ACCORD_RETURN_IF_ERROR(check(options));
  KeyValueCache cache;
  cache.options_ = options;
  std::size_t bytes = 0;
  for (const CachedLayer& layer : parts.layers) {
    const kernels::PagedCache paged{.dtype = options.dtype,
                                    .blocks = options.blocks,
                                    .block_tokens = options.block_tokens,
                                    .kv_heads = layer.kv_heads,
                                    .head_dim = layer.head_dim,
                                    .value_dim = layer.value_dim,
                                    .value_place = layer.value_place};
    bytes += aligned(key_bytes(paged)) + aligned(value_bytes(paged));
    cache.layers_.emplace(layer.layer, paged);
  }
  for (const CachedState& state : parts.states) {
    bytes += aligned(state_bytes(state.floats, options.blocks));
    cache.states_.emplace(state.state, SequenceStates{nullptr, state.floats, options.block_tokens});
  }
  if (bytes == 0) return cache;
  ACCORD_ASSIGN_OR_RETURN(cache.memory_, Region::allocate(bytes, "the cache of the sequences"));
  std::byte* at = cache.memory_.data();
  for (auto& [number, paged] : cache.layers_) {
    paged.keys = at;
    at += aligned(key_bytes(paged));
    paged.values = at;
    at += aligned(value_bytes(paged));
  }
  for (auto& [number, states] : cache.states_) {
    states.data = reinterpret_cast<float*>(at);
    at += aligned(state_bytes(states.floats, options.blocks));
  }
  return cache;
}

void KeyValueCache::copy_block(std::int32_t from, std::int32_t to) const {
  const auto blocks = static_cast<std::size_t>(options_.blocks);
  for (const auto& [number, states] : states_)
    std::copy_n(states.data + from * states.floats, states.floats, states.data + to * states.floats);
  for (const auto& [number, paged] : layers_) {
    const auto copy = [&](std::byte* memory, std::size_t bytes) {
      const std::size_t block = bytes / blocks;
      std::memcpy(memory + static_cast<std::size_t>(to) * block, memory + static_cast<std::size_t>(from) * block,
                  block);
    };
    copy(paged.keys, key_bytes(paged));
    copy(paged.values, value_bytes(paged));
  }
}

}  // namespace accord::engine
