#pragma once
// The keys and values that a language model keeps for its sequences: one paged cache per attention layer.

#include <map>
#include <span>

#include "engine/program/batch.hpp"
#include "engine/program/region.hpp"
#include "kernels/attention/paged_cache.hpp"

namespace accord::engine {

/// Its pages are taken from the system when they are first written.
class KeyValueCache {
 public:
  KeyValueCache() = default;
  /// Fails with kInvalidArgument for invalid options, and with kResourceExhausted if the system refuses the memory.
  static Result<KeyValueCache> create(std::span<const CachedLayer> layers, const KeyValueCacheOptions& options);

  const KeyValueCacheOptions& options() const { return options_; }
  std::size_t bytes() const { return memory_.size(); }
  /// REQUIRES: a layer of this number.
  const kernels::PagedCache& layer(std::int64_t number) const { return layers_.at(number); }
  /// Copies a block in all layers.
  void copy_block(std::int32_t from, std::int32_t to) const;

 private:
  KeyValueCacheOptions options_;
  Region memory_;
  std::map<std::int64_t, kernels::PagedCache> layers_;
};

}  // namespace accord::engine
