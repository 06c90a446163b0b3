// Rules of the ops that compute element by element, along undivided dimensions, or per head.
#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>

#include "engine/graph/node_access.hpp"
#include "engine/partition/carry.hpp"

namespace accord::engine {

// Inputs are aligned at their last dimension. Each is divided like the output or has one element in the divided
// dimension; of other inputs, each rank uses its part.
Result<ShardResult> carry_elementwise(const ShardQuery& query) {
  const int dims = query.dims(query.node.outputs.front());
  OptionalShard output;
  Status problem;
  for_each_input(query.node, [&](ValueId id) {
    const OptionalShard& shard = query.shard(id);
    if (!shard) return;
    const Shard aligned = shard->in_dim(shard->dim + dims - query.dims(id));
    if (output && *output != aligned) {
      problem = query.unsupported("one input has " + shard_text(*output) + ", another one " + shard_text(aligned));
    }
    output = aligned;
  });
  ACCORD_RETURN_IF_ERROR(problem);
  ShardResult result{output};
  for_each_input(query.node, [&](ValueId id) {
    const int dim = output->dim - (dims - query.dims(id));
    if (query.shard(id) || dim < 0) return;
    const SymbolicInt& size = query.value(id).shape[static_cast<std::size_t>(dim)];
    if (size != SymbolicInt(1)) result.used_parts.push_back({id, output->in_dim(dim)});
  });
  return result;
}

// softmax, cumsum and similar ops need all elements along "dim".
Result<ShardResult> carry_along_dimension(const ShardQuery& query) {
  const auto self = tensor_argument(query.node, "self");
  if (!self || !query.shard(*self)) return query.unsupported("only its first input may be sharded");
  ACCORD_ASSIGN_OR_RETURN(const std::int64_t given, integer_argument(query.node, "dim"));
  ACCORD_ASSIGN_OR_RETURN(const int dim, dimension_index(query.node, given, query.dims(*self)));
  if (query.shard(*self)->dim == dim) return query.unsupported("it needs all of the sharded dimension");
  return ShardResult{query.shard(*self), {}};
}

Result<ShardResult> carry_reduction(const ShardQuery& query) {
  const auto self = tensor_argument(query.node, "self");
  if (!self || !query.shard(*self)) return query.unsupported("only its first input may be sharded");
  Shard shard = *query.shard(*self);
  ACCORD_ASSIGN_OR_RETURN(const std::vector<std::int64_t> given, integers_argument(query.node, "dim"));
  ACCORD_ASSIGN_OR_RETURN(const bool keep, flag_argument(query.node, "keepdim", false));
  if (given.empty()) return query.unsupported("it reduces the sharded dimension");
  int removed_before = 0;
  for (const std::int64_t number : given) {
    ACCORD_ASSIGN_OR_RETURN(const int dim, dimension_index(query.node, number, query.dims(*self)));
    if (dim == shard.dim) return query.unsupported("it reduces the sharded dimension");
    if (!keep && dim < shard.dim) ++removed_before;
  }
  shard.dim -= removed_before;
  return ShardResult{shard, {}};
}

Result<ShardResult> carry_layer_norm(const ShardQuery& query) {
  const auto input = tensor_argument(query.node, "input");
  if (!input || !query.shard(*input)) return query.unsupported("only its input may be sharded");
  if (query.shard("weight") || query.shard("bias")) return query.unsupported("its weights are sharded");
  ACCORD_ASSIGN_OR_RETURN(const std::vector<std::int64_t> normalized,
                          integers_argument(query.node, "normalized_shape"));
  const int first = query.dims(*input) - static_cast<int>(normalized.size());
  if (query.shard(*input)->dim >= first) return query.unsupported("it normalizes over the sharded dimension");
  return ShardResult{query.shard(*input), {}};
}

// Heads are independent: each rank computes its own. With fewer key and value heads than query heads (grouped
// queries), the units must line up, so that each query head finds its key head on the same rank.
Result<ShardResult> carry_attention(const ShardQuery& query) {
  const auto q_id = tensor_argument(query.node, "query");
  const auto k_id = tensor_argument(query.node, "key");
  const auto v_id = tensor_argument(query.node, "value");
  if (!q_id || !k_id || !v_id) return query.unsupported("an input is missing");
  const OptionalShard& q = query.shard(*q_id);
  for (const ValueId id : {*q_id, *k_id, *v_id}) {
    const OptionalShard& shard = query.shard(id);
    const int heads = query.dims(id) - 3;
    if (!shard) {
      return query.unsupported(
          fmt::format("\"{}\" is whole, but another of query, key and value is sharded", query.value(id).name));
    }
    if (shard->dim != heads) {
      return query.unsupported(
          fmt::format("\"{}\" has {}, which is not its heads", query.value(id).name, shard_text(*shard)));
    }
    if (!line_up(*shard, *q)) {
      return query.unsupported(
          fmt::format("query has {}, but \"{}\" has {}", shard_text(*q), query.value(id).name, shard_text(*shard)));
    }
  }
  ShardResult result{q};
  if (const auto mask = tensor_argument(query.node, "attn_mask")) {
    const int heads = query.dims(*mask) - 3;
    const OptionalShard& shard = query.shard(*mask);
    const bool per_head = heads >= 0 && query.value(*mask).shape[static_cast<std::size_t>(heads)] != SymbolicInt(1);
    if (shard && (shard->dim != heads || !line_up(*shard, *q))) {
      return query.unsupported("its mask is sharded differently from its heads");
    }
    if (!shard && per_head) result.used_parts.push_back({*mask, q->in_dim(heads)});
  }
  return result;
}

// The same, but the output is [1, tokens, heads, dim], and there may be one number for each query head. All ranks may
// have the whole of one key head, which all query heads use.
Result<ShardResult> carry_cached_attention(const ShardQuery& query) {
  const auto key = tensor_argument(query.node, "key");
  if (tensor_argument(query.node, "value")) {
    ACCORD_RETURN_IF_ERROR(carry_attention(query).status());
  } else if (!key || query.shard(*key) || query.value(*key).shape[1] != SymbolicInt(1)) {
    return query.unsupported("keys that contain their values are one head, which every rank has whole");
  }
  if (!query.shard("query") || query.shard("query")->dim != 1)
    return query.unsupported("its queries are not divided by heads");
  const Shard heads = *query.shard("query");
  ShardResult result{heads.in_dim(2)};
  for (const char* const name : {"sinks", "slopes", "biases"}) {
    const auto id = tensor_argument(query.node, name);
    if (!id) continue;
    const OptionalShard& shard = query.shard(*id);
    if (!shard) {
      result.used_parts.push_back({*id, heads.in_dim(0)});
    } else if (!same_units(*shard, heads)) {
      return query.unsupported(fmt::format("its {} are sharded differently from its heads", name));
    }
  }
  return result;
}

// Each rank stores its heads. The output is the number of rows, which all ranks have.
Result<ShardResult> carry_cache_source(const ShardQuery& query) {
  const OptionalShard key = query.shard("key"), value = query.shard("value");
  if (!key || !value || key->dim != 1 || *key != *value)
    return query.unsupported("its keys and values are not divided alike by heads");
  return ShardResult{};
}

// Each rank attends with its heads. Engines check that it has the keys of these heads when they create a cache.
Result<ShardResult> carry_cross_attention(const ShardQuery& query) {
  const OptionalShard heads = query.shard("query");
  if (!heads || heads->dim != 1) return query.unsupported("its queries are not divided by heads");
  return ShardResult{heads->in_dim(2)};
}

namespace {

// Channels are independent. Each rank uses its part of weights that all have whole.
Result<ShardResult> carry_channels(const ShardQuery& query, const Shard& channels,
                                   std::initializer_list<const char*> weights) {
  ShardResult result{channels};
  for (const char* const name : weights) {
    const auto id = tensor_argument(query.node, name);
    if (!id) continue;
    const OptionalShard& shard = query.shard(*id);
    if (!shard) {
      result.used_parts.push_back({*id, channels.in_dim(0)});
    } else if (*shard != channels.in_dim(0)) {
      return query.unsupported(fmt::format("its {} is sharded differently from its input", name));
    }
  }
  return result;
}

}  // namespace

Result<ShardResult> carry_causal_convolution(const ShardQuery& query) {
  const OptionalShard input = query.shard("input");
  if (!input || input->dim != 1) return query.unsupported("only the channels of its input may be sharded");
  return carry_channels(query, *input, {"weight", "bias"});
}

Result<ShardResult> carry_wkv(const ShardQuery& query) {
  const OptionalShard key = query.shard("key"), value = query.shard("value");
  if (!key || !value || key->dim != 1 || *key != *value)
    return query.unsupported("its keys and values are not divided alike by channels");
  return carry_channels(query, *key, {"decay", "bonus"});
}

// Heads are independent, as in attention: each rank computes its own. All ranks may have the whole of one key head,
// which all heads use.
Result<ShardResult> carry_linear_recurrence(const ShardQuery& query) {
  const OptionalShard value = query.shard("value");
  for (const char* const name : {"query", "key", "value", "decay", "beta"}) {
    const auto id = tensor_argument(query.node, name);
    if (!id) continue;
    const OptionalShard& shard = query.shard(*id);
    const bool of_keys = name == std::string_view("query") || name == std::string_view("key");
    if (of_keys && !shard && query.value(*id).shape[1] == SymbolicInt(1)) continue;
    if (!shard || !value || shard->dim != 1 || !line_up(*shard, *value))
      return query.unsupported(fmt::format("the heads of its {} are not divided as those of its value", name));
  }
  return ShardResult{value};
}

// A table divided by columns yields rows that are divided in their last dimension. If the table is divided by rows,
// each rank looks up the rows that it has and outputs zeros for the others.
Result<ShardResult> carry_embedding(const ShardQuery& query) {
  const OptionalShard table = query.shard("weight");
  if (query.shard("indices")) return query.unsupported("its ids are sharded");
  if (!table) return query.unsupported("only its table may be sharded");
  if (table->dim == 0) return ShardResult{std::nullopt, table->group};
  return ShardResult{table->in_dim(query.dims(query.node.outputs.front()) - 1), {}};
}

}  // namespace accord::engine
