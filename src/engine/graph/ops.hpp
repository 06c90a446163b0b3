#pragma once
// Which ops an engine knows, and what arguments they take. ops.inc is the table; the exporter has a copy of it.

#include <span>
#include <string_view>

#include "accord/status.hpp"
#include "engine/graph/graph.hpp"

namespace accord::engine {

/// One op of a package.
struct OpInfo {
  std::string_view name;       ///< "aten.linear.default"
  std::string_view arguments;  ///< as in ATen's schema: "Tensor input, Tensor weight, Tensor? bias=None"
};

/// An attention that keeps its keys and values.
inline constexpr std::string_view kCachedAttention = "accord.attention.default";

/// All of them, sorted by name.
std::span<const OpInfo> known_ops();

/// Checks each node of a package's graph: kUnsupported names an op that is not in the table, its module and its place
/// in the source model, and the nearest that is; kCorrupt an argument that is missing, unknown or of another kind.
Status check_ops(const Graph& graph);

}  // namespace accord::engine
