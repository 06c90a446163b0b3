#pragma once
// Checks what a caller passes to run().

#include <span>
#include <vector>

#include "accord/engine.hpp"
#include "engine/graph/graph.hpp"
#include "engine/program/program.hpp"

namespace accord::engine {

/// Returns inputs or outputs of `graph` as they are shown to users.
std::vector<TensorInfo> tensor_infos(const Graph& graph, const std::vector<ValueId>& values);

/// Checks what must be checked on every run: the number of inputs, their dtypes and numbers of dimensions, and that
/// the memory of each has the size of its shape and is the CPU's or on `device`. Fails with kInvalidArgument, naming
/// the input and the problem. Allocates nothing if all is well.
Status check_memory(const Graph& graph, std::span<const TensorView> inputs, Device device);

/// Returns the values of the symbols implied by these inputs, in the order of graph.symbols. Fails with
/// kInvalidArgument, naming the input, if a size is not the graph's, is outside its symbol's range, or gives a symbol
/// two values.
/// REQUIRES: check_memory is ok.
Result<std::vector<std::int64_t>> match_inputs(const Graph& graph, std::span<const TensorView> inputs);

/// Returns the same values as a map, for evaluating sizes.
SymbolValues symbol_values(const Graph& graph, std::span<const std::int64_t> values);

}  // namespace accord::engine
