#pragma once
// The keys and values that a language model keeps of its sequences, one paged cache for each attention layer.

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "accord/engine.hpp"
#include "engine/graph/graph.hpp"
#include "engine/runtime/region.hpp"
#include "kernels/paged_cache.hpp"

namespace accord::engine {

/// Rows [first_row, first_row + rows.rows) of a run's tensors are one sequence's.
struct BatchRows {
  std::int64_t first_row = 0;
  kernels::SequenceRows rows;
};

/// What one attention layer keeps of a token: this rank's heads.
struct CachedLayer {
  std::int64_t layer = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t value_dim = 0;
  DType dtype = DType::kFloat32;  ///< that a cache can have without rounding keys and values: or bfloat16
};

/// The layers of `graph` (cut for this rank). kCorrupt for two of one number, kUnsupported for sizes that are no constants.
Result<std::vector<CachedLayer>> cached_layers(const Graph& graph);

/// kInvalidArgument for numbers of blocks or tokens that cannot be, kUnsupported for a dtype.
Status check(const KeyValueCacheOptions& options);

/// kInvalidArgument unless the sequences fill rows [0, rows) one after the other and their tables are long enough and name blocks of a cache
/// of these options.
Status check(std::span<const BatchRows> batch, std::int64_t rows, const KeyValueCacheOptions& options);

/// Pages are taken from the system when they are first written.
class KeyValueCache {
 public:
  KeyValueCache() = default;
  /// kInvalidArgument for options that cannot be, kResourceExhausted if the system refuses the memory.
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
