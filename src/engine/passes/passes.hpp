#pragma once
// The passes over this rank's graph before it runs: small pure functions, each from a graph to an equivalent one.

#include <span>
#include <string_view>

#include "engine/graph/graph.hpp"

namespace accord::engine {

/// Removes ops that return their input unchanged: conversions to the same dtype, + 0, * 1, views and expansions to the
/// same shape, and masks that are true everywhere.
Graph remove_identities(Graph graph);

/// Keeps only the first of several nodes that compute the same from the same values. Leaves collectives alone.
Graph merge_common_subexpressions(Graph graph);

/// Removes nodes whose outputs are not used.
Graph remove_dead_nodes(Graph graph);

/// Turns x * rsqrt(mean(x ^ 2) + eps) over the last dimension, with conversions and a weight, into one
/// "accord.rms_norm". Here and below, remove_dead_nodes removes nodes that are left without users.
Graph fuse_rms_norm(Graph graph);

/// Turns x * cos + cat(-second half of x, first half of x) * sin into one "accord.rotary".
Graph fuse_rotary(Graph graph);

/// Makes the rotary embeddings of the queries and keys of "accord.attention", if these have no other user and use the
/// same tables, a part of it: its arguments "cos" and "sin". Runs after fuse_rotary.
Graph fuse_rotary_attention(Graph graph);

/// Turns a linear whose weight is a parameter and a gelu, relu, silu or tanh that is its only user into one
/// "accord.linear" with that activation.
Graph fuse_linear_activation(Graph graph);

/// Turns activation(linear) * linear of one input, with parameters as their weights, into one "accord.gated_linear".
/// Runs after fuse_linear_activation.
Graph fuse_gated_linear(Graph graph);

/// Turns linear layers of one input with parameters as their weights, with no other product between them, into one
/// "accord.linears" with all their outputs.
Graph fuse_linears(Graph graph);

/// Turns an add and a layer_norm or rms_norm of the sum into one "accord.add_layer_norm" or "accord.add_rms_norm",
/// which also outputs the sum if others use it.
Graph fuse_add_norm(Graph graph);

/// Turns an all_reduce and a norm of the sum, with or without a residual, into one "accord.all_reduce_rms_norm" or
/// "accord.all_reduce_add_rms_norm", or the same for layer_norm. Leaves the all_reduce to remove_dead_nodes.
Graph fuse_reduce_norm(Graph graph);
/// Returns the norm in one of these ops, or an empty name if `op` is another op.
std::string_view norm_of_reduce_norm(std::string_view op);

/// Turns PyTorch's functional all_reduce into "accord.all_reduce". Runs before the other passes, which know only the
/// latter.
Graph name_all_reduce(Graph graph);

/// Turns "accord.adapted_linear.default" into a linear and "accord.adapters", which adds to it. The other passes then
/// see layers in their plain form.
Graph split_adapters(Graph graph);

/// One row of the table of passes.
struct Pass {
  std::string_view name;
  Graph (*apply)(Graph graph);
};

/// All passes in the order in which they run.
std::span<const Pass> passes();

/// Runs all passes.
Graph apply_passes(Graph graph);

}  // namespace accord::engine
