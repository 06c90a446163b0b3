// Each pass: a graph before it, and the graph after it.
#include "engine/passes/passes.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/host/target.hpp"
#include "engine/ops/op_registry.hpp"
#include "engine/program/program.hpp"
#include "unit/engine/graph/graph_writer.hpp"

namespace accord::engine {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(RemoveIdentities, identity_nodes_are_replaced_by_their_input) {
  GraphWriter writer;
  const ValueId x = writer.input("x", shape_of({"2", "3"}));
  ValueId y = writer.node("aten._to_copy.default", {{"self", of(x)}, {"dtype", DType::kFloat32}}, shape_of({"2", "3"}));
  y = writer.node("aten.add.Tensor", {{"self", of(y)}, {"other", number(0)}}, shape_of({"2", "3"}));
  y = writer.node("aten.mul.Tensor", {{"self", of(y)}, {"other", 1.0}}, shape_of({"2", "3"}));
  y = writer.node("aten.view.default", {{"self", of(y)}, {"size", numbers({"2", "3"})}}, shape_of({"2", "3"}));
  y = writer.node("aten.expand.default", {{"self", of(y)}, {"size", numbers({"2", "-1"})}}, shape_of({"2", "3"}));
  y = writer.node("aten.slice.Tensor", {{"self", of(y)}, {"dim", number(0)}}, shape_of({"2", "3"}));
  y = writer.node("aten.relu.default", {{"self", of(y)}}, shape_of({"2", "3"}));
  writer.output(y);
  const Graph after = remove_identities(writer.graph());
  EXPECT_THAT(ops_of(after), ElementsAre("aten.relu.default"));
  EXPECT_EQ(after.nodes[0].arguments.at("self"), of(x));
  EXPECT_THAT(after.outputs, ElementsAre(y));
}

TEST(RemoveIdentities, nodes_that_change_their_input_are_kept) {
  GraphWriter writer;
  const ValueId x = writer.input("x", shape_of({"2", "3"}));
  const ValueId n = writer.input("n", shape_of({"2", "3"}), DType::kInt64);
  writer.output(writer.node("aten.add.Tensor", {{"self", of(x)}, {"other", number(1)}}, shape_of({"2", "3"})));
  writer.output(writer.node("aten.add.Tensor", {{"self", of(n)}, {"other", 0.0}}, shape_of({"2", "3"})));
  writer.output(
      writer.node("aten._to_copy.default", {{"self", of(n)}, {"dtype", DType::kFloat32}}, shape_of({"2", "3"})));
  writer.output(writer.node("aten.view.default", {{"self", of(x)}, {"size", numbers({"6"})}}, shape_of({"6"})));
  EXPECT_EQ(remove_identities(writer.graph()).nodes.size(), 4U);
}

TEST(RemoveIdentities, a_mask_that_is_true_everywhere_is_removed) {
  GraphWriter writer;
  writer.symbol("l", 1, 8);
  const ValueId mask = writer.input("mask", shape_of({"2", "1", "1", "l"}), DType::kBool);
  const ValueId positions =
      writer.node("aten.arange.start_step", {{"start", number(0)}, {"end", *SymbolicInt::parse("l")}}, shape_of({"l"}),
                  DType::kInt64);
  const ValueId column = writer.node("aten.unsqueeze.default", {{"self", of(positions)}, {"dim", number(1)}},
                                     shape_of({"l", "1"}), DType::kInt64);
  const ValueId seen =
      writer.node("aten.ge.Scalar", {{"self", of(column)}, {"other", number(0)}}, shape_of({"l", "1"}), DType::kBool);
  const ValueId all =
      writer.node("aten.full.default", {{"size", numbers({})}, {"fill_value", true}}, shape_of({}), DType::kBool);
  const ValueId both = writer.node("aten.bitwise_and.Tensor", {{"self", of(all)}, {"other", of(seen)}},
                                   shape_of({"l", "1"}), DType::kBool);
  writer.output(writer.node("aten.bitwise_and.Tensor", {{"self", of(both)}, {"other", of(mask)}},
                            shape_of({"2", "1", "l", "l"}), DType::kBool));
  const Graph after = remove_dead_nodes(remove_identities(writer.graph()));
  EXPECT_THAT(ops_of(after), ElementsAre("aten.expand.default"));
  EXPECT_EQ(after.nodes[0].arguments.at("self"), of(mask));
  EXPECT_EQ(after.nodes[0].arguments.at("size"), numbers({"2", "1", "l", "l"}));
}

TEST(RemoveIdentities, a_mask_that_may_be_false_is_kept) {
  GraphWriter writer;
  const ValueId mask = writer.input("mask", shape_of({"8"}), DType::kBool);
  const ValueId from_minus_two = writer.node("aten.arange.start_step", {{"start", number(-2)}, {"end", number(6)}},
                                             shape_of({"8"}), DType::kInt64);
  const ValueId seen = writer.node("aten.ge.Scalar", {{"self", of(from_minus_two)}, {"other", number(0)}},
                                   shape_of({"8"}), DType::kBool);
  writer.output(
      writer.node("aten.bitwise_and.Tensor", {{"self", of(seen)}, {"other", of(mask)}}, shape_of({"8"}), DType::kBool));
  EXPECT_EQ(remove_identities(writer.graph()).nodes.size(), 3U);
}

TEST(MergeCommonSubexpressions, equal_nodes_are_merged_and_different_ones_are_kept) {
  GraphWriter writer;
  const ValueId x = writer.input("x", shape_of({"4"}));
  const ValueId a = writer.node("aten.add.Tensor", {{"self", of(x)}, {"other", number(1)}}, shape_of({"4"}));
  const ValueId b = writer.node("aten.add.Tensor", {{"self", of(x)}, {"other", number(1)}}, shape_of({"4"}));
  const ValueId c = writer.node("aten.add.Tensor", {{"self", of(x)}, {"other", 1.0}}, shape_of({"4"}));
  const ValueId d = writer.node("aten.neg.default", {{"self", of(a)}}, shape_of({"4"}));
  const ValueId e = writer.node("aten.neg.default", {{"self", of(b)}}, shape_of({"4"}));
  writer.output(d);
  writer.output(e);
  writer.output(c);
  const Graph after = merge_common_subexpressions(writer.graph());
  EXPECT_THAT(ops_of(after), ElementsAre("aten.add.Tensor", "aten.add.Tensor", "aten.neg.default"));
  EXPECT_THAT(after.outputs, ElementsAre(d, d, c));
}

TEST(MergeCommonSubexpressions, collectives_are_not_merged) {
  GraphWriter writer;
  const ValueId x = writer.input("x", shape_of({"4"}));
  for (int i = 0; i < 2; ++i) {
    writer.output(writer.node("accord.all_reduce", {{"self", of(x)}, {"group", text("tp")}}, shape_of({"4"})));
  }
  EXPECT_EQ(merge_common_subexpressions(writer.graph()).nodes.size(), 2U);
}

TEST(RemoveDeadNodes, only_nodes_that_an_output_needs_are_kept) {
  GraphWriter writer;
  const ValueId x = writer.input("x", shape_of({"4"}));
  const ValueId a = writer.node("aten.neg.default", {{"self", of(x)}}, shape_of({"4"}));
  const ValueId unused = writer.node("aten.relu.default", {{"self", of(a)}}, shape_of({"4"}));
  writer.node("aten.exp.default", {{"self", of(unused)}}, shape_of({"4"}));
  writer.output(writer.node("aten.abs.default", {{"self", of(a)}}, shape_of({"4"})));
  EXPECT_THAT(ops_of(remove_dead_nodes(writer.graph())), ElementsAre("aten.neg.default", "aten.abs.default"));
}

struct LinearThen {
  LinearThen(const std::string& op, Arguments more) {
    x = writer.input("x", shape_of({"2", "4"}));
    weight = writer.parameter("w", shape_of({"3", "4"}));
    linear = writer.node("aten.linear.default", {{"input", of(x)}, {"weight", of(weight)}}, shape_of({"2", "3"}));
    more["self"] = of(linear);
    activated = writer.node(op, more, shape_of({"2", "3"}));
    writer.output(activated);
  }
  GraphWriter writer;
  ValueId x, weight, linear, activated;
};

TEST(FuseLinearActivation, each_activation_is_fused_into_the_product) {
  const std::vector<std::tuple<std::string, Arguments, std::string>> cases = {
      {"aten.gelu.default", {}, "gelu"},
      {"aten.gelu.default", {{"approximate", text("tanh")}}, "gelu_tanh"},
      {"aten.relu.default", {}, "relu"},
      {"aten.silu.default", {}, "silu"},
      {"aten.tanh.default", {}, "tanh"}};
  for (const auto& [op, more, activation] : cases) {
    const LinearThen before(op, more);
    const Graph after = fuse_linear_activation(before.writer.graph());
    ASSERT_THAT(ops_of(after), ElementsAre("accord.linear"));
    EXPECT_EQ(after.nodes[0].arguments.at("activation"), text(activation));
    EXPECT_EQ(after.nodes[0].arguments.at("weight"), of(before.weight));
    EXPECT_THAT(after.nodes[0].outputs, ElementsAre(before.activated));
  }
}

TEST(FuseLinearActivation, a_linear_layer_with_another_user_is_not_fused) {
  LinearThen before("aten.relu.default", {});
  before.writer.output(before.linear);
  EXPECT_EQ(fuse_linear_activation(before.writer.graph()).nodes.size(), 2U);
}

TEST(FuseLinearActivation, a_linear_layer_with_a_computed_weight_is_not_fused_and_can_be_prepared) {
  GraphWriter writer;
  const ValueId x = writer.input("x", shape_of({"2", "4"}));
  const ValueId weight = writer.input("w", shape_of({"3", "4"}));
  const ValueId scaled =
      writer.node("aten.mul.Tensor", {{"self", of(weight)}, {"other", number(2)}}, shape_of({"3", "4"}));
  const ValueId linear =
      writer.node("aten.linear.default", {{"input", of(x)}, {"weight", of(scaled)}}, shape_of({"2", "3"}));
  writer.output(writer.node("aten.gelu.default", {{"self", of(linear)}}, shape_of({"2", "3"})));
  const Graph after = apply_passes(writer.graph());
  EXPECT_THAT(ops_of(after), ElementsAre("aten.mul.Tensor", "aten.linear.default", "aten.gelu.default"));
  const Result<Program> program = prepare_program({after, {}, host::target(), find_op, {}, 1}, {});
  EXPECT_TRUE(program.ok()) << program.status().to_string();
}

/// x + y -> layer_norm, as in a transformer.
struct Residual {
  explicit Residual(const std::string& other_rows = "2") {
    x = writer.input("x", shape_of({"2", "4"}));
    y = writer.input("y", shape_of({other_rows, "4"}));
    weight = writer.parameter("w", shape_of({"4"}));
    sum = writer.node("aten.add.Tensor", {{"self", of(x)}, {"other", of(y)}}, shape_of({"2", "4"}));
    norm =
        writer.node("aten.layer_norm.default",
                    {{"input", of(sum)}, {"normalized_shape", numbers({"4"})}, {"weight", of(weight)}, {"eps", 1e-12}},
                    shape_of({"2", "4"}));
    writer.output(norm);
  }
  GraphWriter writer;
  ValueId x, y, weight, sum, norm;
};

TEST(FuseAddLayerNorm, a_residual_sum_and_its_norm_become_one_node) {
  const Residual before;
  const Graph after = fuse_add_norm(before.writer.graph());
  ASSERT_THAT(ops_of(after), ElementsAre("accord.add_layer_norm"));
  const Node& node = after.nodes[0];
  EXPECT_EQ(node.arguments.at("self"), of(before.x));
  EXPECT_EQ(node.arguments.at("residual"), of(before.y));
  EXPECT_EQ(node.arguments.at("eps"), Argument(1e-12));
  EXPECT_FALSE(node.arguments.contains("input"));
  EXPECT_THAT(node.outputs, ElementsAre(before.norm));
}

TEST(FuseAddLayerNorm, a_sum_with_other_users_becomes_a_second_output) {
  Residual before;
  before.writer.output(before.writer.node("aten.neg.default", {{"self", of(before.sum)}}, shape_of({"2", "4"})));
  const Graph after = fuse_add_norm(before.writer.graph());
  ASSERT_THAT(ops_of(after), ElementsAre("accord.add_layer_norm", "aten.neg.default"));
  EXPECT_THAT(after.nodes[0].outputs, ElementsAre(before.norm, before.sum));
}

TEST(FuseAddLayerNorm, a_sum_that_broadcasts_or_scales_is_not_fused) {
  EXPECT_EQ(fuse_add_norm(Residual("1").writer.graph()).nodes.size(), 2U);
  Residual scaled;
  Graph graph = scaled.writer.graph();
  graph.nodes[0].arguments["alpha"] = number(2);
  EXPECT_EQ(fuse_add_norm(graph).nodes.size(), 2U);
}

/// partial -> all_reduce -> + residual -> rms_norm, as a row-parallel layer ends. The sum is kept.
struct RowParallelEnd {
  explicit RowParallelEnd(bool reduced_first, const std::string& op = "sum") {
    partial = writer.input("partial", shape_of({"2", "4"}));
    residual = writer.input("residual", shape_of({"2", "4"}));
    reduced = writer.node("accord.all_reduce", {{"self", of(partial)}, {"group", text("tp")}, {"op", text(op)}},
                          shape_of({"2", "4"}));
    norm = writer.node("accord.add_rms_norm",
                       {{"self", of(reduced_first ? reduced : residual)},
                        {"residual", of(reduced_first ? residual : reduced)},
                        {"normalized_shape", numbers({"4"})}},
                       shape_of({"2", "4"}));
    writer.output(norm);
  }
  GraphWriter writer;
  ValueId partial, residual, reduced, norm;
};

TEST(FuseReduceNorm, a_sum_of_ranks_is_fused_into_the_norm_as_either_operand) {
  for (const bool reduced_first : {true, false}) {
    const RowParallelEnd before(reduced_first);
    const Graph after = remove_dead_nodes(fuse_reduce_norm(before.writer.graph()));
    ASSERT_THAT(ops_of(after), ElementsAre("accord.all_reduce_add_rms_norm"));
    const Node& node = after.nodes[0];
    EXPECT_EQ(node.arguments.at("self"), of(before.partial));
    EXPECT_EQ(node.arguments.at("residual"), of(before.residual));
    EXPECT_EQ(node.arguments.at("group"), text("tp"));
    EXPECT_THAT(node.outputs, ElementsAre(before.norm));
  }
}

TEST(FuseReduceNorm, a_sum_is_fused_into_a_norm_without_residual) {
  GraphWriter writer;
  const ValueId x = writer.input("x", shape_of({"2", "4"}));
  const ValueId sum = writer.node("accord.all_reduce", {{"self", of(x)}, {"group", text("tp")}}, shape_of({"2", "4"}));
  writer.output(writer.node("aten.layer_norm.default", {{"input", of(sum)}, {"normalized_shape", numbers({"4"})}},
                            shape_of({"2", "4"})));
  const Graph after = remove_dead_nodes(fuse_reduce_norm(writer.graph()));
  ASSERT_THAT(ops_of(after), ElementsAre("accord.all_reduce_layer_norm"));
  EXPECT_EQ(after.nodes[0].arguments.at("input"), of(x));
}

TEST(FuseReduceNorm, the_bias_of_the_layer_is_fused_between_the_sum_and_the_residual) {
  GraphWriter writer;
  const SymbolicShape rows = shape_of({"2", "4"});
  const ValueId x = writer.input("x", rows);
  const ValueId residual = writer.input("residual", rows);
  const ValueId bias = writer.parameter("bias", shape_of({"4"}));
  const ValueId sum = writer.node("accord.all_reduce", {{"self", of(x)}, {"group", text("tp")}}, rows);
  const ValueId biased = writer.node("aten.add.Tensor", {{"self", of(sum)}, {"other", of(bias)}}, rows);
  const ValueId both = writer.node("aten.add.Tensor", {{"self", of(biased)}, {"other", of(residual)}}, rows);
  writer.output(
      writer.node("aten.layer_norm.default", {{"input", of(both)}, {"normalized_shape", numbers({"4"})}}, rows));
  writer.output(both);
  const Graph after = apply_passes(writer.graph());
  ASSERT_THAT(ops_of(after), ElementsAre("accord.all_reduce_add_layer_norm"));
  EXPECT_EQ(after.nodes[0].arguments.at("self"), of(x));
  EXPECT_EQ(after.nodes[0].arguments.at("addend"), of(bias));
  EXPECT_EQ(after.nodes[0].arguments.at("residual"), of(residual));
}

TEST(FuseReduceNorm, a_sum_with_other_users_and_a_maximum_are_not_fused) {
  RowParallelEnd shown(true);
  shown.writer.output(shown.reduced);
  EXPECT_THAT(ops_of(fuse_reduce_norm(shown.writer.graph())), ElementsAre("accord.all_reduce", "accord.add_rms_norm"));
  const RowParallelEnd maximum(true, "max");
  EXPECT_THAT(ops_of(fuse_reduce_norm(maximum.writer.graph())),
              ElementsAre("accord.all_reduce", "accord.add_rms_norm"));
}

TEST(ApplyPasses, run_to_the_end_of_the_table) {
  const LinearThen before("aten.gelu.default", {});
  EXPECT_THAT(ops_of(apply_passes(before.writer.graph())), ElementsAre("accord.linear"));
  EXPECT_THAT(ops_of(apply_passes(Graph{})), IsEmpty());
}

}  // namespace
}  // namespace accord::engine
