// Rules of the ops that compute element by element, along undivided dimensions, or per head.
#include <fmt/format.h>

#include <algorithm>

#include "engine/graph/node_access.hpp"
#include "engine/partition/carry.hpp"

namespace accord::engine {

// Inputs are aligned at their last dimension. Each must be divided like the output, or have one element in the divided
// dimension.
Result<CarryAnswer> carry_elementwise(const CarryQuestion& question) {
  const int dims = question.dims(question.node.outputs.front());
  OptionalShard output;
  Status problem;
  for_each_input(question.node, [&](ValueId id) {
    const OptionalShard& shard = question.shard(id);
    if (!shard) return;
    const Shard aligned = shard->in_dim(shard->dim + dims - question.dims(id));
    if (output && *output != aligned) {
      problem = question.refuse("one input has " + shard_text(*output) + ", another one " + shard_text(aligned));
    }
    output = aligned;
  });
  for_each_input(question.node, [&](ValueId id) {
    if (question.shard(id) || !problem.ok()) return;
    const int dim = output->dim - (dims - question.dims(id));
    if (dim < 0) return;
    const SymbolicInt& size = question.value(id).shape[static_cast<std::size_t>(dim)];
    if (size == SymbolicInt(1)) return;
    problem = question.refuse(fmt::format("one input has {}, but \"{}\" is whole; give its weight a sharding too",
                                          shard_text(*output), question.value(id).name));
  });
  ACCORD_RETURN_IF_ERROR(problem);
  return CarryAnswer{output, {}};
}

// softmax, cumsum and similar ops need all elements along "dim".
Result<CarryAnswer> carry_along_dimension(const CarryQuestion& question) {
  const auto self = tensor_argument(question.node, "self");
  if (!self || !question.shard(*self)) return question.refuse("only its first input may be sharded");
  ACCORD_ASSIGN_OR_RETURN(const std::int64_t given, integer_argument(question.node, "dim"));
  ACCORD_ASSIGN_OR_RETURN(const int dim, dimension_index(question.node, given, question.dims(*self)));
  if (question.shard(*self)->dim == dim) return question.refuse("it needs all of the sharded dimension");
  return CarryAnswer{question.shard(*self), {}};
}

Result<CarryAnswer> carry_reduction(const CarryQuestion& question) {
  const auto self = tensor_argument(question.node, "self");
  if (!self || !question.shard(*self)) return question.refuse("only its first input may be sharded");
  Shard shard = *question.shard(*self);
  ACCORD_ASSIGN_OR_RETURN(const std::vector<std::int64_t> given, integers_argument(question.node, "dim"));
  ACCORD_ASSIGN_OR_RETURN(const bool keep, flag_argument(question.node, "keepdim", false));
  if (given.empty()) return question.refuse("it reduces the sharded dimension");
  int gone_before = 0;
  for (const std::int64_t number : given) {
    ACCORD_ASSIGN_OR_RETURN(const int dim, dimension_index(question.node, number, question.dims(*self)));
    if (dim == shard.dim) return question.refuse("it reduces the sharded dimension");
    if (!keep && dim < shard.dim) ++gone_before;
  }
  shard.dim -= gone_before;
  return CarryAnswer{shard, {}};
}

Result<CarryAnswer> carry_layer_norm(const CarryQuestion& question) {
  const auto input = tensor_argument(question.node, "input");
  if (!input || !question.shard(*input)) return question.refuse("only its input may be sharded");
  if (question.shard("weight") || question.shard("bias")) return question.refuse("its weights are sharded");
  ACCORD_ASSIGN_OR_RETURN(const std::vector<std::int64_t> normalized,
                          integers_argument(question.node, "normalized_shape"));
  const int first = question.dims(*input) - static_cast<int>(normalized.size());
  if (question.shard(*input)->dim >= first) return question.refuse("it normalizes over the sharded dimension");
  return CarryAnswer{question.shard(*input), {}};
}

// Heads are independent: each rank computes its own. With fewer key and value heads than query heads (grouped
// queries), the units must line up, so that each query head finds its key head on the same rank.
Result<CarryAnswer> carry_attention(const CarryQuestion& question) {
  const auto query = tensor_argument(question.node, "query");
  const auto key = tensor_argument(question.node, "key");
  const auto value = tensor_argument(question.node, "value");
  if (!query || !key || !value) return question.refuse("an input is missing");
  const OptionalShard& q = question.shard(*query);
  for (const ValueId id : {*query, *key, *value}) {
    const OptionalShard& shard = question.shard(id);
    const int heads = question.dims(id) - 3;
    if (!shard) {
      return question.refuse(
          fmt::format("\"{}\" is whole, but another of query, key and value is sharded", question.value(id).name));
    }
    if (shard->dim != heads) {
      return question.refuse(
          fmt::format("\"{}\" has {}, which is not its heads", question.value(id).name, shard_text(*shard)));
    }
    if (!line_up(*shard, *q)) {
      return question.refuse(
          fmt::format("query has {}, but \"{}\" has {}", shard_text(*q), question.value(id).name, shard_text(*shard)));
    }
  }
  if (const auto mask = tensor_argument(question.node, "attn_mask")) {
    const int heads = question.dims(*mask) - 3;
    const OptionalShard& shard = question.shard(*mask);
    const bool per_head = heads >= 0 && question.value(*mask).shape[static_cast<std::size_t>(heads)] != SymbolicInt(1);
    if (shard && (shard->dim != heads || !line_up(*shard, *q))) {
      return question.refuse("its mask is sharded otherwise than its heads");
    }
    if (!shard && per_head) return question.refuse("its mask has heads and is whole");
  }
  return CarryAnswer{q, {}};
}

// The same, but the output is [1, tokens, heads, dim].
Result<CarryAnswer> carry_cached_attention(const CarryQuestion& question) {
  ACCORD_RETURN_IF_ERROR(carry_attention(question).status());
  return CarryAnswer{question.shard("query")->in_dim(2), {}};
}

// A table divided by columns yields rows that are divided in their last dimension. If the table is divided by rows,
// each rank looks up the rows that it has and outputs zeros for the others.
Result<CarryAnswer> carry_embedding(const CarryQuestion& question) {
  const OptionalShard table = question.shard("weight");
  if (question.shard("indices")) return question.refuse("its ids are sharded");
  if (!table) return question.refuse("only its table may be sharded");
  if (table->dim == 0) return CarryAnswer{std::nullopt, table->group};
  return CarryAnswer{table->in_dim(question.dims(question.node.outputs.front()) - 1), {}};
}

}  // namespace accord::engine
