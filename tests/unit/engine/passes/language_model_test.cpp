// The passes for decomposed ops of language models: norms and rotary embeddings, as transformers writes them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/passes/passes.hpp"
#include "unit/engine/graph/graph_writer.hpp"

namespace accord::engine {
namespace {

using ::testing::ElementsAre;

Graph fused(const GraphWriter& writer, Graph (*pass)(Graph)) { return remove_dead_nodes(pass(writer.graph())); }

/// x of bfloat16 -> float32 -> x * rsqrt(mean(x ^ 2) + eps) -> bfloat16 -> * weight.
struct Norm {
  explicit Norm(std::int64_t dim = -1, double exponent = 2.0) {
    const SymbolicShape rows = shape_of({"2", "4"});
    x = writer.input("x", rows, DType::kBFloat16);
    weight = writer.parameter("w", shape_of({"4"}), DType::kBFloat16);
    wide = writer.node("aten._to_copy.default", {{"self", of(x)}, {"dtype", DType::kFloat32}}, rows);
    const ValueId square = writer.node("aten.pow.Tensor_Scalar", {{"self", of(wide)}, {"exponent", exponent}}, rows);
    const ValueId mean =
        writer.node("aten.mean.dim", {{"self", of(square)}, {"dim", std::vector<SymbolicInt>{dim}}, {"keepdim", true}},
                    shape_of({dim == -1 ? "2" : "1", dim == -1 ? "1" : "4"}));
    const ValueId shifted = writer.node("aten.add.Tensor", {{"self", of(mean)}, {"other", 1e-6}}, shape_of({"2", "1"}));
    const ValueId root = writer.node("aten.rsqrt.default", {{"self", of(shifted)}}, shape_of({"2", "1"}));
    normed = writer.node("aten.mul.Tensor", {{"self", of(wide)}, {"other", of(root)}}, rows);
    rounded = writer.node("aten._to_copy.default", {{"self", of(normed)}, {"dtype", DType::kBFloat16}}, rows,
                          DType::kBFloat16);
    weighted = writer.node("aten.mul.Tensor", {{"self", of(weight)}, {"other", of(rounded)}}, rows, DType::kBFloat16);
    writer.output(weighted);
  }
  GraphWriter writer;
  ValueId x, weight, wide, normed, rounded, weighted;
};

TEST(FuseRmsNorm, a_decomposed_rms_norm_is_fused_with_its_conversions_and_weight) {
  const Norm before;
  const Graph after = fused(before.writer, fuse_rms_norm);
  ASSERT_THAT(ops_of(after), ElementsAre("accord.rms_norm"));
  const Node& node = after.nodes[0];
  EXPECT_EQ(node.arguments.at("input"), of(before.x));
  EXPECT_EQ(node.arguments.at("weight"), of(before.weight));
  EXPECT_EQ(node.arguments.at("eps"), Argument(1e-6));
  EXPECT_EQ(node.arguments.at("normalized_shape"), numbers({"4"}));
  EXPECT_THAT(node.outputs, ElementsAre(before.weighted));
}

TEST(FuseRmsNorm, values_with_other_users_are_not_fused) {
  Norm before;
  before.writer.output(before.rounded);
  const Graph after = fused(before.writer, fuse_rms_norm);
  ASSERT_THAT(ops_of(after), ElementsAre("accord.rms_norm", "aten.mul.Tensor"));
  EXPECT_THAT(after.nodes[0].outputs, ElementsAre(before.rounded));
  EXPECT_FALSE(after.nodes[0].arguments.contains("weight"));
}

TEST(FuseRmsNorm, another_dimension_and_another_power_are_not_fused) {
  EXPECT_EQ(fused(Norm(0).writer, fuse_rms_norm).nodes.size(), Norm().writer.graph().nodes.size());
  EXPECT_EQ(fused(Norm(-1, 3.0).writer, fuse_rms_norm).nodes.size(), Norm().writer.graph().nodes.size());
}

TEST(FuseRmsNorm, a_preceding_residual_sum_is_fused) {
  GraphWriter writer;
  const SymbolicShape rows = shape_of({"2", "4"});
  const ValueId x = writer.input("x", rows);
  const ValueId y = writer.input("y", rows);
  const ValueId weight = writer.parameter("w", shape_of({"4"}));
  const ValueId sum = writer.node("aten.add.Tensor", {{"self", of(x)}, {"other", of(y)}}, rows);
  const ValueId norm = writer.node(
      "accord.rms_norm",
      {{"input", of(sum)}, {"normalized_shape", numbers({"4"})}, {"weight", of(weight)}, {"eps", 1e-6}}, rows);
  writer.output(norm);
  writer.output(sum);
  const Graph after = fuse_add_norm(writer.graph());
  ASSERT_THAT(ops_of(after), ElementsAre("accord.add_rms_norm"));
  EXPECT_EQ(after.nodes[0].arguments.at("residual"), of(y));
  EXPECT_THAT(after.nodes[0].outputs, ElementsAre(norm, sum));
}

/// x * cos + cat(-x[2:], x[:2]) * sin over [1, 3, tokens, 4]; the second half begins at `half`.
struct Rotary {
  explicit Rotary(std::int64_t half = 2, const std::string& table_heads = "1") {
    writer.symbol("tokens", 1, 8);
    const SymbolicShape heads = shape_of({"1", "3", "tokens", "4"});
    const SymbolicShape halves = shape_of({"1", "3", "tokens", "2"});
    const SymbolicShape table = shape_of({"1", table_heads, "tokens", "4"});
    x = writer.input("x", heads);
    cos = writer.input("cos", table);
    sin = writer.input("sin", table);
    const ValueId straight = writer.node("aten.mul.Tensor", {{"self", of(x)}, {"other", of(cos)}}, heads);
    const ValueId first =
        writer.node("aten.slice.Tensor", {{"self", of(x)}, {"dim", number(3)}, {"end", number(2)}}, halves);
    const ValueId second = writer.node("aten.slice.Tensor",
                                       {{"self", of(x)},
                                        {"dim", number(3)},
                                        {"start", number(half)},
                                        {"end", number(std::numeric_limits<std::int64_t>::max())}},
                                       halves);
    const ValueId negative = writer.node("aten.neg.default", {{"self", of(second)}}, halves);
    const ValueId turned = writer.node(
        "aten.cat.default",
        {{"tensors", std::vector<ValueRef>{ValueRef{negative}, ValueRef{first}}}, {"dim", number(-1)}}, heads);
    const ValueId crossed = writer.node("aten.mul.Tensor", {{"self", of(turned)}, {"other", of(sin)}}, heads);
    output = writer.node("aten.add.Tensor", {{"self", of(straight)}, {"other", of(crossed)}}, heads);
    writer.output(output);
  }
  GraphWriter writer;
  ValueId x, cos, sin, output;
};

TEST(FuseRotary, a_decomposed_embedding_becomes_one_node) {
  const Rotary before;
  const Graph after = fused(before.writer, fuse_rotary);
  ASSERT_THAT(ops_of(after), ElementsAre("accord.rotary"));
  EXPECT_EQ(after.nodes[0].arguments,
            (Arguments{{"input", of(before.x)}, {"cos", of(before.cos)}, {"sin", of(before.sin)}}));
  EXPECT_THAT(after.nodes[0].outputs, ElementsAre(before.output));
}

TEST(FuseRotary, other_halves_and_a_table_per_head_are_not_fused) {
  EXPECT_EQ(fused(Rotary(1).writer, fuse_rotary).nodes.size(), 7U);
  EXPECT_EQ(fused(Rotary(2, "3").writer, fuse_rotary).nodes.size(), 7U);
}

/// Attention over the cache whose queries and keys are rotated, by the same tables or by tables of their own.
struct RotatedAttention {
  enum class Tables : std::uint8_t { kShared, kOwn };
  explicit RotatedAttention(Tables tables = Tables::kShared) {
    const SymbolicShape heads = shape_of({"1", "2", "3", "4"}), table = shape_of({"1", "1", "3", "4"});
    q = writer.input("q", heads), k = writer.input("k", heads), v = writer.input("v", heads);
    cos = writer.input("cos", table), sin = writer.input("sin", table);
    const ValueId other = writer.input("other", table);
    const auto rotated = [&](ValueId x, ValueId its_sin) {
      return writer.node("accord.rotary", {{"input", of(x)}, {"cos", of(cos)}, {"sin", of(its_sin)}}, heads);
    };
    query = rotated(q, sin);
    const ValueId key = rotated(k, tables == Tables::kShared ? sin : other);
    writer.output(
        writer.node("accord.attention.default",
                    {{"query", of(query)}, {"key", of(key)}, {"value", of(v)}, {"layer", number(0)}, {"scale", 0.5}},
                    shape_of({"1", "3", "2", "4"})));
  }
  GraphWriter writer;
  ValueId q, k, v, cos, sin, query;
};

TEST(FuseRotaryAttention, rotated_queries_and_keys_become_a_part_of_the_attention) {
  const RotatedAttention before;
  const Graph after = fused(before.writer, fuse_rotary_attention);
  ASSERT_THAT(ops_of(after), ElementsAre("accord.attention.default"));
  const Arguments expected = {{"query", of(before.q)}, {"key", of(before.k)}, {"value", of(before.v)},
                              {"layer", number(0)},    {"scale", 0.5},        {"cos", of(before.cos)},
                              {"sin", of(before.sin)}};
  EXPECT_EQ(after.nodes[0].arguments, expected);
}

TEST(FuseRotaryAttention, other_tables_and_other_users_are_not_fused) {
  EXPECT_EQ(fused(RotatedAttention(RotatedAttention::Tables::kOwn).writer, fuse_rotary_attention).nodes.size(), 3U);
  RotatedAttention shown;
  shown.writer.output(shown.query);
  EXPECT_EQ(fused(shown.writer, fuse_rotary_attention).nodes.size(), 3U);
}

}  // namespace
}  // namespace accord::engine
