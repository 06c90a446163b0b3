#pragma once
// A rank's weights in memory of the CPU.

#include <map>
#include <string>
#include <vector>

#include "engine/program/parameters.hpp"

namespace accord::engine::host {

/// Returns the bytes that loading `parts` takes on the CPU: the stored size of every part that the graph uses. Float8
/// weights count with the size that they are converted to.
std::uint64_t planned_bytes(const Package& package, const Graph& graph, const std::vector<TensorPart>& parts);

/// Maps and checks the granules of `parts` (one per parameter of the graph) that the graph uses. Weights that the
/// package stores as the graph uses them stay there, shared with other processes. The others (row-major weights of
/// products, columns of a row-major tensor, float8 weights of products) are read and reordered. Fails with kCorrupt
/// also if the graph wants elements of a packed tensor. Cost: one pass over the weights, by `threads` threads.
Result<Parameters> load_parameters(Package& package, const Graph& graph, const std::vector<TensorPart>& parts,
                                   int threads, Contents contents = Contents::kRead);

/// Takes weights in memory, by the names of the graph's parameters. Weights that are used as they are stay where they
/// are and must outlive the result; weights of matrix products are packed. Fails with kInvalidArgument, naming the
/// weight, if one is missing or has another dtype or shape than the graph declares.
Result<Parameters> reference_parameters(const Graph& graph, const std::map<std::string, TensorView>& weights);

}  // namespace accord::engine::host
