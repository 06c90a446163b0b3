#pragma once
// Weights that lie one after another in a device's memory, so that one product computes all of their layers.

#include <functional>
#include <optional>
#include <vector>

#include "engine/graph/graph.hpp"
#include "engine/program/parameters.hpp"

namespace accord::engine::gpu {

/// Returns the places of the graph's parameters that share memory: the weights of the linear layers of one node, and a
/// weight and its gate, in this order. They have equal dtypes and as many inputs. Small weights (kKnownBytes) and those
/// whose bytes are not a multiple of the alignment of device memory have their own memory.
///
/// `is_row_major`: whether a parameter is stored row-major in the dtype that the graph states.
std::vector<std::optional<JoinedPlace>> joined_places(const Graph& graph,
                                                      const std::function<bool(std::size_t parameter)>& is_row_major);

/// Returns the sizes of a value that depend on no symbol. REQUIRES: there are no symbols in them.
std::vector<std::int64_t> constant_sizes(const Value& value);

}  // namespace accord::engine::gpu
