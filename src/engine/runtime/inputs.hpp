#pragma once
// Checking what a caller gives to run().

#include <span>
#include <vector>

#include "accord/engine.hpp"
#include "engine/graph/graph.hpp"
#include "engine/runtime/program.hpp"

namespace accord::engine {

/// How inputs and outputs of `graph` are shown to users.
std::vector<TensorInfo> tensor_infos(const Graph& graph, const std::vector<ValueId>& values);

/// What has to be checked on every run: kInvalidArgument names the input and what is wrong, how many there are, dtype,
/// number of dimensions, memory that is of another size than the shape or neither the CPU's nor on `device`. Allocates nothing when all is well.
Status check_memory(const Graph& graph, std::span<const TensorView> inputs, Device device);

/// The values of the symbols that these inputs mean, in the order of graph.symbols. kInvalidArgument names the input whose
/// size is wrong: not the graph's, a symbol out of its range or of two values.
/// REQUIRES: check_memory is ok.
Result<std::vector<std::int64_t>> match_inputs(const Graph& graph, std::span<const TensorView> inputs);

/// The same as a map, for evaluating sizes.
SymbolValues symbol_values(const Graph& graph, std::span<const std::int64_t> values);

}  // namespace accord::engine
