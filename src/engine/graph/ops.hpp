#pragma once
// The ops that an engine knows and the arguments that they take. The table is ops.inc; the exporter has a copy of it.

#include <span>
#include <string_view>

#include "accord/status.hpp"
#include "engine/graph/graph.hpp"

namespace accord::engine {

/// One op that a package may contain.
struct OpInfo {
  std::string_view name;       ///< "aten.linear.default"
  std::string_view arguments;  ///< as in ATen's schema: "Tensor input, Tensor weight, Tensor? bias=None"
};

/// Attention that caches its keys and values. Without the argument "value", the value of a token is the first
/// "value_dim" elements of its key.
inline constexpr std::string_view kCachedAttention = "accord.attention.default";
/// Stores the keys and values of a request's source, for the layer's cross attention.
inline constexpr std::string_view kCacheSource = "accord.cache_source.default";
/// Attention to all rows of the source of each sequence.
inline constexpr std::string_view kCrossAttention = "accord.cross_attention.default";
/// A linear layer and the adapters that its rows may choose.
inline constexpr std::string_view kAdaptedLinear = "accord.adapted_linear.default";
/// A product with a matrix for each head.
inline constexpr std::string_view kHeadLinear = "accord.head_linear.default";
/// Layers that keep a state for each sequence.
inline constexpr std::string_view kCausalConvolution = "accord.causal_convolution.default";
inline constexpr std::string_view kLinearRecurrence = "accord.linear_recurrence.default";
inline constexpr std::string_view kWkv = "accord.wkv.default";
inline constexpr std::int64_t kWkvStateRows = 3;  ///< of a state of kWkv: [3, channels]

/// Returns true for an op that keeps a state for each sequence.
constexpr bool keeps_state(std::string_view op) {
  return op == kCausalConvolution || op == kLinearRecurrence || op == kWkv;
}

/// Returns true for an op that keeps something of the tokens of each sequence in the cache.
constexpr bool uses_cache(std::string_view op) { return op == kCachedAttention || keeps_state(op); }

/// All known ops, sorted by name.
std::span<const OpInfo> known_ops();

/// Checks each node of a package's graph. Fails with kUnsupported if an op is not in the table: the error names the
/// op, its module, its place in the source model and the nearest op in the table. Fails with kCorrupt if an argument
/// is missing, unknown or of the wrong kind.
Status check_ops(const Graph& graph);

}  // namespace accord::engine
