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
struct CarryQuestion {
  const Graph& graph;
  const Node& node;
  const std::vector<OptionalShard>& shards;  ///< indexed by ValueId

  const Value& value(ValueId id) const { return graph.values[static_cast<std::size_t>(id)]; }
  const OptionalShard& shard(ValueId id) const { return shards[static_cast<std::size_t>(id)]; }
  /// The shard of a tensor argument, or nullopt if the argument is whole or left out.
  OptionalShard shard(std::string_view argument) const;
  int dims(ValueId id) const { return static_cast<int>(value(id).shape.size()); }
  /// Returns kUnsupported: this op cannot carry a shard, because of `why`.
  Status refuse(std::string_view why) const;
};

/// The result of a rule: the shard of the outputs; the group over which the outputs are still to be added up; or the
/// group whose ranks have to exchange rows because each rank has some of the experts.
struct CarryAnswer {
  OptionalShard output = {};
  std::optional<std::string> partial_over = {};
  std::optional<std::string> experts_over = {};
};

using CarryFunction = Result<CarryAnswer> (*)(const CarryQuestion& question);

/// Returns the rule for an op, or nullptr if the op cannot carry a shard. Called only if an input is sharded.
CarryFunction carry_rule(std::string_view op);

// The rules, one file for each kind (carry_*.cpp). The table that assigns them to families of ops is in carry.cpp.
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

/// Returns the shard after a tensor of shape `from` is viewed in shape `to`, or nullopt if no dimension of `to` is
/// divided the same way. Pure.
OptionalShard shard_of_view(const Shard& shard, const SymbolicShape& from, const SymbolicShape& to);

}  // namespace accord::engine
