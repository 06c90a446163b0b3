// Rules of matrix products. Column-parallel layers begin a sharded stretch, row-parallel layers end it.
#include <fmt/format.h>

#include "engine/graph/node_access.hpp"
#include "engine/partition/carry.hpp"

namespace accord::engine {
namespace {

/// x [.., in] times a weight with dimensions `out_dim` and `in_dim`, plus a bias [out].
struct Product {
  ValueId x;
  ValueId weight;
  std::optional<ValueId> bias;
  int out_dim;
  int in_dim;
};

// Column: x is whole and the output is divided in its last dimension. Row: x is divided in its last dimension and the
// outputs are partial sums.
Result<ShardResult> carry_product(const ShardQuery& query, const Product& product) {
  const OptionalShard& x = query.shard(product.x);
  const OptionalShard& weight = query.shard(product.weight);
  const OptionalShard bias = product.bias ? query.shard(*product.bias) : std::nullopt;
  const std::string& weight_name = query.value(product.weight).name;
  const int last = query.dims(product.x) - 1;
  const int output_last = query.dims(query.node.outputs.front()) - 1;

  if (!weight) {
    if (bias) return query.unsupported("its bias is sharded, but its weight is whole");
    if (x && x->dim == last) {
      return query.unsupported(fmt::format("its input has {}, but weight \"{}\" is whole; give its module a row rule",
                                           shard_text(*x), weight_name));
    }
    return ShardResult{x, {}};
  }
  if (weight->dim == product.out_dim) {
    if (x) {
      return query.unsupported(
          fmt::format("weight \"{}\" is divided by its outputs (column), but its input has {}; such a "
                      "layer needs a whole input",
                      weight_name, shard_text(*x)));
    }
    if (product.bias && (!bias || !same_units(*bias, *weight))) {
      return query.unsupported(
          fmt::format("weight \"{}\" is divided by its outputs, but its bias is not divided like it", weight_name));
    }
    return ShardResult{weight->in_dim(output_last), {}};
  }
  if (bias) return query.unsupported("its bias is sharded, but its weight is divided by its inputs (row)");
  if (!x || x->dim != last) {
    return Status(
        StatusCode::kInvalidArgument,
        fmt::format("{}: weight \"{}\" is divided by its inputs (row), but its input is not sharded in its last "
                    "dimension; give the layer before it a column rule",
                    node_text(query.node), weight_name));
  }
  if (!same_units(*x, *weight)) {
    return Status(
        StatusCode::kInvalidArgument,
        fmt::format("{}: its input has {}, which does not line up with weight \"{}\", which has {}; give both "
                    "rules the same group and unit",
                    node_text(query.node), shard_text(*x), weight_name, shard_text(*weight)));
  }
  return ShardResult{std::nullopt, weight->group};
}

}  // namespace

Result<ShardResult> carry_linear(const ShardQuery& query) {
  const auto x = tensor_argument(query.node, "input");
  const auto weight = tensor_argument(query.node, "weight");
  if (!x || !weight) return query.unsupported("an input is missing");
  return carry_product(query, {*x, *weight, tensor_argument(query.node, "bias"), 0, 1});
}

// The adapters [adapters, out, in] are divided as the layer's weight is: those of the outputs with its columns, those
// of the inputs with its rows. Their results are then part of the layer's.
Result<ShardResult> carry_adapted_linear(const ShardQuery& query) {
  const OptionalShard weight = query.shard("weight"), down = query.shard("down"), up = query.shard("up");
  if (query.shard("adapters")) return query.unsupported("the choice of adapters is sharded");
  const bool column = weight && weight->dim == 0, row = weight && weight->dim == 1;
  const bool fits = column ? up == weight->in_dim(1) && !down : row ? down == weight->in_dim(2) && !up : !down && !up;
  if (!fits) return query.unsupported("its adapters are not divided like its weight");
  return carry_linear(query);
}

// mm(self, mat2) and addmm(bias, mat1, mat2): the weight is [in, out].
Result<ShardResult> carry_matrix_product(const ShardQuery& query) {
  const bool with_bias = op_family(query.node.op) == "aten.addmm";
  const auto x = tensor_argument(query.node, with_bias ? "mat1" : "self");
  const auto weight = tensor_argument(query.node, "mat2");
  if (!x || !weight) return query.unsupported("an input is missing");
  const auto bias = with_bias ? tensor_argument(query.node, "self") : std::nullopt;
  return carry_product(query, {*x, *weight, bias, 1, 0});
}

// Heads are independent: each rank has the matrices of its heads. Of a whole input it uses its heads.
Result<ShardResult> carry_head_linear(const ShardQuery& query) {
  const OptionalShard input = query.shard("input"), weight = query.shard("weight");
  if (!weight) return query.unsupported("its input is sharded, but its weight is whole; give its module a column rule");
  if (input && (input->dim != 1 || !same_units(*input, *weight)))
    return query.unsupported(fmt::format("its input has {}, but its weight has {}; both are divided head by head",
                                         shard_text(*input), shard_text(*weight)));
  ShardResult result{weight->in_dim(1)};
  if (!input) result.used_parts.push_back({*tensor_argument(query.node, "input"), weight->in_dim(1)});
  return result;
}

// Each rank has either a part of every expert (up and gate divided by outputs, down by inputs), which yields partial
// sums, or some of the experts.
Result<ShardResult> carry_experts(const ShardQuery& query) {
  for (const std::string_view whole : {"input", "experts", "weights"}) {
    if (query.shard(whole)) return query.unsupported("its rows and their chosen experts must be whole");
  }
  const OptionalShard up = query.shard("up");
  const OptionalShard down = query.shard("down");
  const bool gated = tensor_argument(query.node, "gate").has_value();
  const bool by_expert = up && up->dim == 0 && down == up;
  const bool within = up && down && up->dim == 1 && down->dim == 2 && line_up(*up, *down) && up->unit == down->unit;
  if ((!by_expert && !within) || (gated && query.shard("gate") != up)) {
    return query.unsupported("the weights of its experts are not divided alike");
  }
  ShardResult result = by_expert ? ShardResult{{}, {}, up->group} : ShardResult{{}, up->group, {}};
  for (const char* const name : {"up_bias", "gate_bias"}) {
    if (const auto bias = tensor_argument(query.node, name)) result.used_parts.push_back({*bias, *up});
  }
  return result;
}

// Batches are independent. If all ranks have the whole of one input, each uses its part.
Result<ShardResult> carry_batched_product(const ShardQuery& query) {
  const auto a = tensor_argument(query.node, "self");
  const auto b = tensor_argument(query.node, "mat2");
  if (!a || !b) return query.unsupported("an input is missing");
  const OptionalShard& left = query.shard(*a);
  const OptionalShard& right = query.shard(*b);
  const OptionalShard& shard = left ? left : right;
  if (!shard || shard->dim != 0 || (left && right && *left != *right))
    return query.unsupported("its two inputs are not divided alike in a batch dimension");
  ShardResult result{shard};
  if (!left) result.used_parts.push_back({*a, *shard});
  if (!right) result.used_parts.push_back({*b, *shard});
  return result;
}

}  // namespace accord::engine
