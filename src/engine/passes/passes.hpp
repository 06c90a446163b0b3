#pragma once
// What is done to this rank's graph before it is run: small pure functions, each from a graph to an equivalent one.

#include <span>
#include <string_view>

#include "engine/graph/graph.hpp"

namespace accord::engine {

/// Takes away ops that give back their input: conversions to the same dtype, + 0, * 1, views and expansions to the same shape,
/// and masks that are true everywhere.
Graph remove_identities(Graph graph);

/// Keeps the first of nodes that compute the same of the same values. Collectives are left alone.
Graph merge_common_subexpressions(Graph graph);

/// Takes away nodes of which nobody uses an output.
Graph remove_dead_nodes(Graph graph);

/// x * rsqrt(mean(x ^ 2) + eps) over the last dimension, with conversions and a weight: one "accord.rms_norm". What it leaves
/// without users is for remove_dead_nodes, here and below.
Graph fuse_rms_norm(Graph graph);

/// x * cos + cat(-second half of x, first half of x) * sin: one "accord.rotary".
Graph fuse_rotary(Graph graph);

/// linear with a parameter as its weight, then gelu, relu, silu or tanh of it alone: one "accord.linear" with that activation.
Graph fuse_linear_activation(Graph graph);

/// activation(linear) * linear of one input, with parameters as their weights: one "accord.gated_linear". Runs behind
/// fuse_linear_activation.
Graph fuse_gated_linear(Graph graph);

/// Linear layers of one input with parameters as their weights, with no other product between them: one "accord.linears" with their
/// outputs.
Graph fuse_linears(Graph graph);

/// add, then layer_norm or rms_norm of the sum: one "accord.add_layer_norm" or "accord.add_rms_norm", which also gives the sum if
/// others use it.
Graph fuse_add_norm(Graph graph);

/// all_reduce, then a norm of the sum, with or without a residual: one "accord.all_reduce_rms_norm", "accord.all_reduce_add_rms_norm"
/// or the same of layer_norm. Leaves the all_reduce to remove_dead_nodes.
Graph fuse_reduce_norm(Graph graph);
/// The norm in one of these ops; empty if `op` is none.
std::string_view norm_of_reduce_norm(std::string_view op);

/// PyTorch's functional all_reduce becomes "accord.all_reduce". Comes before the others, which know only that.
Graph name_all_reduce(Graph graph);

/// One row of the table.
struct Pass {
  std::string_view name;
  Graph (*apply)(Graph graph);
};

/// All passes in the order in which they run.
std::span<const Pass> passes();

/// Runs all of them.
Graph apply_passes(Graph graph);

}  // namespace accord::engine
