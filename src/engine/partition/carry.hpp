#pragma once
// How shards propagate through one op.

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "engine/graph/graph.hpp"
#include "engine/partition/shard.hpp"

namespace accord::engine {

using OptionalShard = std::optional<Shard>;

/// One node of the whole (undivided) graph, and the shards of all values produced before it.
struct ShardQuery {
  const Graph& graph;
  const Node& node;
  const std::vector<OptionalShard>& shards;  ///< indexed by ValueId

  const Value& value(ValueId id) const { return graph.values[static_cast<std::size_t>(id)]; }
  const OptionalShard& shard(ValueId id) const { return shards[static_cast<std::size_t>(id)]; }
  /// The shard of a tensor argument, or nullopt if the argument is whole or left out.
  OptionalShard shard(std::string_view argument) const;
  int dims(ValueId id) const { return static_cast<int>(value(id).shape.size()); }
  /// Returns kUnsupported: this op cannot carry a shard, because of `why`.
  Status unsupported(std::string_view why) const;
};

/// An input that all ranks have whole, and the part of it that each rank uses.
struct UsedPart {
  ValueId input = -1;
  Shard shard;
};

/// The result of a rule: the shard of the outputs; the group over which the outputs are still to be added up; or the
/// group whose ranks have to exchange rows because each rank has some of the experts.
struct ShardResult {
  OptionalShard output = {};
  std::optional<std::string> partial_over = {};
  std::optional<std::string> experts_over = {};
  std::vector<UsedPart> used_parts = {};
};

using CarryFunction = Result<ShardResult> (*)(const ShardQuery& query);

/// Returns the rule for an op, or nullptr if the op cannot carry a shard. Called only if an input is sharded.
CarryFunction carry_rule(std::string_view op);

// The rules, one file for each kind (carry_*.cpp). The table that assigns them to families of ops is in carry.cpp.
Result<ShardResult> carry_elementwise(const ShardQuery& query);
Result<ShardResult> carry_linear(const ShardQuery& query);
Result<ShardResult> carry_adapted_linear(const ShardQuery& query);
Result<ShardResult> carry_matrix_product(const ShardQuery& query);
Result<ShardResult> carry_batched_product(const ShardQuery& query);
Result<ShardResult> carry_attention(const ShardQuery& query);
Result<ShardResult> carry_cached_attention(const ShardQuery& query);
Result<ShardResult> carry_cache_source(const ShardQuery& query);
Result<ShardResult> carry_cross_attention(const ShardQuery& query);
Result<ShardResult> carry_causal_convolution(const ShardQuery& query);
Result<ShardResult> carry_linear_recurrence(const ShardQuery& query);
Result<ShardResult> carry_wkv(const ShardQuery& query);
Result<ShardResult> carry_embedding(const ShardQuery& query);
Result<ShardResult> carry_head_linear(const ShardQuery& query);
Result<ShardResult> carry_experts(const ShardQuery& query);
Result<ShardResult> carry_view(const ShardQuery& query);
Result<ShardResult> carry_permute(const ShardQuery& query);
Result<ShardResult> carry_unsqueeze(const ShardQuery& query);
Result<ShardResult> carry_squeeze(const ShardQuery& query);
Result<ShardResult> carry_expand(const ShardQuery& query);
Result<ShardResult> carry_slice(const ShardQuery& query);
Result<ShardResult> carry_select(const ShardQuery& query);
Result<ShardResult> carry_concatenate(const ShardQuery& query);
Result<ShardResult> carry_along_dimension(const ShardQuery& query);
Result<ShardResult> carry_reduction(const ShardQuery& query);
Result<ShardResult> carry_layer_norm(const ShardQuery& query);

/// Returns the shard after a tensor of shape `from` is viewed in shape `to`, or nullopt if no dimension of `to` is
/// divided the same way. Pure.
OptionalShard shard_of_view(const Shard& shard, const SymbolicShape& from, const SymbolicShape& to);

}  // namespace accord::engine
