#pragma once
// What a language model keeps for its sequences: one paged cache of keys and values per attention layer, and a state
// for each block of tokens per layer that has states.

#include <map>
#include <span>

#include "engine/program/batch.hpp"
#include "engine/program/region.hpp"
#include "kernels/attention/paged_cache.hpp"

namespace accord::engine {

/// The state of a layer after the last token of each block: `floats` for each.
struct SequenceStates {
  float* data = nullptr;
  std::int64_t floats = 0;
  std::int64_t block_tokens = 0;
};

/// Its pages are taken from the system when they are first written.
class KeyValueCache {
 public:
  KeyValueCache() = default;
  /// Fails with kInvalidArgument for invalid options, and with kResourceExhausted if the system refuses the memory.
  static Result<KeyValueCache> create(const CachedParts& parts, const KeyValueCacheOptions& options);

  const KeyValueCacheOptions& options() const { return options_; }
  std::size_t bytes() const { return memory_.size(); }
  /// REQUIRES: a layer of this number.
  const kernels::PagedCache& layer(std::int64_t number) const { return layers_.at(number); }
  /// REQUIRES: a state of this number.
  const SequenceStates& state(std::int64_t number) const { return states_.at(number); }
  /// Copies a block in all layers.
  void copy_block(std::int32_t from, std::int32_t to) const;

 private:
  KeyValueCacheOptions options_;
  Region memory_;
  std::map<std::int64_t, kernels::PagedCache> layers_;
  std::map<std::int64_t, SequenceStates> states_;
};

}  // namespace accord::engine
