// The table of rules. An op that is not in it can be used only where all its inputs are whole.
#include "engine/partition/carry.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "engine/graph/node_access.hpp"
#include "engine/package/package.hpp"

namespace accord::engine {

OptionalShard ShardQuery::shard(std::string_view argument) const {
  const auto id = tensor_argument(node, argument);
  return id ? shard(*id) : std::nullopt;
}

Status ShardQuery::unsupported(std::string_view why) const {
  return Status(StatusCode::kUnsupported, fmt::format("{} cannot carry a shard: {}", node_text(node), why));
}

std::string shard_text(const Shard& shard) {
  return fmt::format("dimension {} cut in {} units of {} over group \"{}\"", shard.dim, shard.units, shard.unit,
                     shard.group);
}

Extent local_extent(const Shard& shard, std::int64_t size, const GroupPlace& place) {
  const Sharding sharding{shard.group, shard.dim, shard.unit, shard.together, shard.copies};
  const UnitRange range = units_of_rank(sharding, shard.units, place.rank, place.size).value_or(UnitRange());
  const std::int64_t first = std::min(size, range.first * shard.unit);
  return {first, std::min(size, (range.first + range.count) * shard.unit) - first};
}

CarryFunction carry_rule(std::string_view op) {
  static const std::map<std::string, CarryFunction, std::less<>> rules = [] {
    std::map<std::string, CarryFunction, std::less<>> table = {
        {"aten.linear", carry_linear},
        {"accord.adapted_linear", carry_adapted_linear},
        {"aten.mm", carry_matrix_product},
        {"aten.addmm", carry_matrix_product},
        {"aten.bmm", carry_batched_product},
        {"aten.scaled_dot_product_attention", carry_attention},
        {"accord.attention", carry_cached_attention},
        {"accord.cache_source", carry_cache_source},
        {"accord.cross_attention", carry_cross_attention},
        {"accord.causal_convolution", carry_causal_convolution},
        {"accord.linear_recurrence", carry_linear_recurrence},
        {"accord.wkv", carry_wkv},
        {"accord.experts", carry_experts},
        {"accord.head_linear", carry_head_linear},
        {"aten.embedding", carry_embedding},
        {"aten.view", carry_view},
        {"aten.permute", carry_permute},
        {"aten.unsqueeze", carry_unsqueeze},
        {"aten.squeeze", carry_squeeze},
        {"aten.expand", carry_expand},
        {"aten.slice", carry_slice},
        {"aten.split_with_sizes", carry_slice},
        {"aten.select", carry_select},
        {"aten.cat", carry_concatenate},
        {"aten._softmax", carry_along_dimension},
        {"aten._log_softmax", carry_along_dimension},
        {"aten.cumsum", carry_along_dimension},
        {"aten.sum", carry_reduction},
        {"aten.mean", carry_reduction},
        {"aten.amax", carry_reduction},
        {"aten.amin", carry_reduction},
        {"aten.layer_norm", carry_layer_norm},
        {"aten.rms_norm", carry_layer_norm},
    };
    for (const std::string_view op_name :
         {"add",        "sub",         "mul",         "div",        "pow",         "sqrt",        "rsqrt",
          "tanh",       "sigmoid",     "relu",        "silu",       "gelu",        "exp",         "log",
          "neg",        "abs",         "reciprocal",  "erf",        "sin",         "cos",         "floor",
          "ceil",       "clamp",       "where",       "eq",         "ne",          "lt",          "le",
          "gt",         "ge",          "logical_and", "logical_or", "logical_xor", "logical_not", "bitwise_and",
          "bitwise_or", "bitwise_not", "minimum",     "maximum",    "_to_copy",    "log1p"}) {
      table.emplace("aten." + std::string(op_name), carry_elementwise);
    }
    return table;
  }();
  const auto found = rules.find(op_family(op));
  return found == rules.end() ? nullptr : found->second;
}

}  // namespace accord::engine
