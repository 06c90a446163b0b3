#pragma once
// The sequences of a language model's run, and the attention layers whose keys and values a cache keeps for them.

#include <cstdint>
#include <span>
#include <vector>

#include "accord/engine.hpp"
#include "engine/graph/graph.hpp"
#include "kernels/attention/paged_cache.hpp"

namespace accord::engine {

/// Rows [first_row, first_row + rows.rows) of a run's tensors belong to one sequence.
struct BatchRows {
  std::int64_t first_row = 0;
  kernels::SequenceRows rows;
  std::int64_t source_rows = 0;                      ///< that cross attention sees
  std::span<const std::int32_t> source_blocks = {};  ///< of their keys and values
};

/// The cached part of a token in one attention layer: this rank's heads.
struct CachedLayer {
  std::int64_t layer = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t value_dim = 0;
  kernels::ValuePlace value_place = kernels::ValuePlace::kOwn;
  DType dtype = DType::kFloat32;  ///< bfloat16 if a cache of it rounds no key or value, else float32
};

/// The state that a layer keeps after a token: this rank's part.
struct CachedState {
  std::int64_t state = 0;  ///< its number
  std::int64_t floats = 0;
};

/// What a cache keeps for the sequences of a graph.
struct CachedParts {
  std::vector<CachedLayer> layers;
  std::vector<CachedState> states;
  bool empty() const { return layers.empty() && states.empty(); }
};

/// Returns the states of `graph` (cut for this rank), as cached_layers() does its attention layers.
Result<std::vector<CachedState>> cached_states(const Graph& graph);
/// Returns both.
Result<CachedParts> cached_parts(const Graph& graph);

/// Returns the attention layers of `graph` (cut for this rank) whose keys and values it stores. Fails with kCorrupt if
/// two have the same number, and with kUnsupported for sizes that are not constants.
Result<std::vector<CachedLayer>> cached_layers(const Graph& graph);

/// Fails with kInvalidArgument for an invalid number of blocks or tokens, and with kUnsupported for an unsupported
/// dtype.
Status check(const KeyValueCacheOptions& options);

/// Fails with kInvalidArgument unless the sequences fill rows [0, rows) one after the other, and their block tables
/// are long enough and name blocks of a cache with these options.
Status check(std::span<const BatchRows> batch, std::int64_t rows, const KeyValueCacheOptions& options);

}  // namespace accord::engine
