#pragma once
// How shards flow through one op.

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "engine/graph/graph.hpp"
#include "engine/partition/shard.hpp"

namespace accord::engine {

using OptionalShard = std::optional<Shard>;

/// One node in the whole (not yet divided) graph, and the shards of all values made before it.
struct CarryQuestion {
  const Graph& graph;
  const Node& node;
  const std::vector<OptionalShard>& shards;  ///< by ValueId

  const Value& value(ValueId id) const { return graph.values[static_cast<std::size_t>(id)]; }
  const OptionalShard& shard(ValueId id) const { return shards[static_cast<std::size_t>(id)]; }
  /// The shard of a tensor argument; nullopt if it is whole or left out.
  OptionalShard shard(std::string_view argument) const;
  int dims(ValueId id) const { return static_cast<int>(value(id).shape.size()); }
  /// kUnsupported: this op cannot carry a shard, because of `why`.
  Status refuse(std::string_view why) const;
};

/// What comes out: the shard of the outputs, and the group over which they still have to be added up, or whose ranks have to exchange
/// their rows because each has some of the experts.
struct CarryAnswer {
  OptionalShard output = {};
  std::optional<std::string> partial_over = {};
  std::optional<std::string> experts_over = {};
};

using CarryFunction = Result<CarryAnswer> (*)(const CarryQuestion& question);

/// The rule for an op, nullptr if it can carry no shard. Only asked when an input is sharded.
CarryFunction carry_rule(std::string_view op);

// The rules, by kind; each file has its own part of the table.
Result<CarryAnswer> carry_elementwise(const CarryQuestion& question);
Result<CarryAnswer> carry_linear(const CarryQuestion& question);
Result<CarryAnswer> carry_matrix_product(const CarryQuestion& question);
Result<CarryAnswer> carry_batched_product(const CarryQuestion& question);
Result<CarryAnswer> carry_attention(const CarryQuestion& question);
Result<CarryAnswer> carry_cached_attention(const CarryQuestion& question);
Result<CarryAnswer> carry_embedding(const CarryQuestion& question);
Result<CarryAnswer> carry_experts(const CarryQuestion& question);
Result<CarryAnswer> carry_view(const CarryQuestion& question);
Result<CarryAnswer> carry_permute(const CarryQuestion& question);
Result<CarryAnswer> carry_unsqueeze(const CarryQuestion& question);
Result<CarryAnswer> carry_squeeze(const CarryQuestion& question);
Result<CarryAnswer> carry_expand(const CarryQuestion& question);
Result<CarryAnswer> carry_slice(const CarryQuestion& question);
Result<CarryAnswer> carry_select(const CarryQuestion& question);
Result<CarryAnswer> carry_concatenate(const CarryQuestion& question);
Result<CarryAnswer> carry_along_dimension(const CarryQuestion& question);
Result<CarryAnswer> carry_reduction(const CarryQuestion& question);
Result<CarryAnswer> carry_layer_norm(const CarryQuestion& question);

/// Where a shard of a tensor of shape `from` lies when the same elements are seen in shape `to`; nullopt if no dimension of
/// `to` is cut the same way. Pure.
OptionalShard shard_of_view(const Shard& shard, const SymbolicShape& from, const SymbolicShape& to);

}  // namespace accord::engine
