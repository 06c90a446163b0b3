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
Result<CarryAnswer> carry_product(const CarryQuestion& question, const Product& product) {
  const OptionalShard& x = question.shard(product.x);
  const OptionalShard& weight = question.shard(product.weight);
  const OptionalShard bias = product.bias ? question.shard(*product.bias) : std::nullopt;
  const std::string& weight_name = question.value(product.weight).name;
  const int last = question.dims(product.x) - 1;
  const int output_last = question.dims(question.node.outputs.front()) - 1;

  if (!weight) {
    if (bias) return question.refuse("its bias is sharded, but its weight is whole");
    if (x && x->dim == last) {
      return question.refuse(fmt::format("its input has {}, but weight \"{}\" is whole; give its module a row rule",
                                         shard_text(*x), weight_name));
    }
    return CarryAnswer{x, {}};
  }
  if (weight->dim == product.out_dim) {
    if (x) {
      return question.refuse(
          fmt::format("weight \"{}\" is divided by its outputs (column), but its input has {}; such a "
                      "layer needs a whole input",
                      weight_name, shard_text(*x)));
    }
    if (product.bias && (!bias || !same_units(*bias, *weight))) {
      return question.refuse(
          fmt::format("weight \"{}\" is divided by its outputs, but its bias is not divided like it", weight_name));
    }
    return CarryAnswer{weight->in_dim(output_last), {}};
  }
  if (bias) return question.refuse("its bias is sharded, but its weight is divided by its inputs (row)");
  if (!x || x->dim != last) {
    return Status(
        StatusCode::kInvalidArgument,
        fmt::format("{}: weight \"{}\" is divided by its inputs (row), but its input is not sharded in its last "
                    "dimension; give the layer before it a column rule",
                    node_text(question.node), weight_name));
  }
  if (!same_units(*x, *weight)) {
    return Status(
        StatusCode::kInvalidArgument,
        fmt::format("{}: its input has {}, which does not line up with weight \"{}\", which has {}; give both "
                    "rules the same group and unit",
                    node_text(question.node), shard_text(*x), weight_name, shard_text(*weight)));
  }
  return CarryAnswer{std::nullopt, weight->group};
}

}  // namespace

Result<CarryAnswer> carry_linear(const CarryQuestion& question) {
  const auto x = tensor_argument(question.node, "input");
  const auto weight = tensor_argument(question.node, "weight");
  if (!x || !weight) return question.refuse("an input is missing");
  return carry_product(question, {*x, *weight, tensor_argument(question.node, "bias"), 0, 1});
}

// mm(self, mat2) and addmm(bias, mat1, mat2): the weight is [in, out].
Result<CarryAnswer> carry_matrix_product(const CarryQuestion& question) {
  const bool with_bias = op_family(question.node.op) == "aten.addmm";
  const auto x = tensor_argument(question.node, with_bias ? "mat1" : "self");
  const auto weight = tensor_argument(question.node, "mat2");
  if (!x || !weight) return question.refuse("an input is missing");
  const auto bias = with_bias ? tensor_argument(question.node, "self") : std::nullopt;
  return carry_product(question, {*x, *weight, bias, 1, 0});
}

// Each rank has either a part of every expert (up and gate divided by outputs, down by inputs), which yields partial
// sums, or some of the experts.
Result<CarryAnswer> carry_experts(const CarryQuestion& question) {
  for (const std::string_view whole : {"input", "experts", "weights"}) {
    if (question.shard(whole)) return question.refuse("its rows and what they chose must be whole");
  }
  const OptionalShard up = question.shard("up");
  const OptionalShard down = question.shard("down");
  const bool gated = tensor_argument(question.node, "gate").has_value();
  const bool by_expert = up && up->dim == 0 && down == up;
  const bool within = up && down && up->dim == 1 && down->dim == 2 && line_up(*up, *down) && up->unit == down->unit;
  if ((!by_expert && !within) || (gated && question.shard("gate") != up)) {
    return question.refuse("the weights of its experts are not divided alike");
  }
  return by_expert ? CarryAnswer{{}, {}, up->group} : CarryAnswer{{}, up->group, {}};
}

// Batches are independent.
Result<CarryAnswer> carry_batched_product(const CarryQuestion& question) {
  const auto a = tensor_argument(question.node, "self");
  const auto b = tensor_argument(question.node, "mat2");
  if (!a || !b) return question.refuse("an input is missing");
  const OptionalShard& left = question.shard(*a);
  const OptionalShard& right = question.shard(*b);
  if (!left || !right || *left != *right || left->dim != 0) {
    return question.refuse("its two inputs are not divided alike in a batch dimension");
  }
  return CarryAnswer{left, {}};
}

}  // namespace accord::engine
