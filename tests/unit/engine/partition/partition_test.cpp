// One rank's part of a graph, checked by value.
#include "engine/partition/partition.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/graph/ops.hpp"
#include "unit/engine/graph/graph_json.hpp"
#include "unit/engine/graph/graph_writer.hpp"

namespace accord::engine {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const SymbolicShape& shape(const Partition& part, ValueId id) {
  return part.graph.values[static_cast<std::size_t>(id)].shape;
}

/// x -> up (column) -> gelu -> down (row), biases on both, `width` in units of `unit`.
struct Mlp {
  Mlp(std::int64_t width, std::int64_t unit) {
    const std::string w = std::to_string(width);
    writer.symbol("batch", 1, 8);
    const ValueId x = writer.input("x", shape_of({"batch", "4"}));
    const ValueId up_weight = writer.parameter("up.weight", shape_of({w, "4"}));
    const ValueId up_bias = writer.parameter("up.bias", shape_of({w}));
    const ValueId down_weight = writer.parameter("down.weight", shape_of({"4", w}));
    down_bias = writer.parameter("down.bias", shape_of({"4"}));
    up = writer.node("aten.linear.default", {{"input", of(x)}, {"weight", of(up_weight)}, {"bias", of(up_bias)}},
                     shape_of({"batch", w}));
    gelu = writer.node("aten.gelu.default", {{"self", of(up)}}, shape_of({"batch", w}));
    down =
        writer.node("aten.linear.default", {{"input", of(gelu)}, {"weight", of(down_weight)}, {"bias", of(down_bias)}},
                    shape_of({"batch", "4"}));
    writer.output(down);
    shardings = {{"up.weight", {"tp", 0, unit}}, {"up.bias", {"tp", 0, unit}}, {"down.weight", {"tp", 1, unit}}};
  }
  Result<Partition> cut(Rank rank, int size) const {
    return partition(writer.graph(), manifest_of(writer.graph(), shardings), {{"tp", {rank, size}}});
  }

  GraphWriter writer;
  std::map<std::string, Sharding> shardings;
  ValueId up, gelu, down, down_bias;
};

TEST(Partition, a_column_and_a_row_layer_give_one_all_reduce_and_the_bias_once) {
  const Mlp mlp(8, 2);
  const Result<Partition> part = mlp.cut(1, 2);
  ASSERT_TRUE(part.ok()) << part.status().to_string();
  EXPECT_THAT(ops_of(part->graph), ElementsAre("aten.linear.default", "aten.gelu.default", "aten.linear.default",
                                               "accord.all_reduce", "aten.add.Tensor"));
  EXPECT_EQ(shape(*part, mlp.up), shape_of({"batch", "4"}));
  EXPECT_EQ(shape(*part, mlp.gelu), shape_of({"batch", "4"}));
  const Node& row = part->graph.nodes[2];
  const Node& reduce = part->graph.nodes[3];
  const Node& add = part->graph.nodes[4];
  EXPECT_FALSE(row.arguments.contains("bias"));
  EXPECT_EQ(reduce.arguments.at("self"), of(row.outputs[0]));
  EXPECT_EQ(reduce.arguments.at("group"), text("tp"));
  EXPECT_EQ(reduce.arguments.at("op"), text("sum"));
  EXPECT_EQ(reduce.module, "layer2");
  EXPECT_EQ(add.arguments.at("self"), of(reduce.outputs[0]));
  EXPECT_EQ(add.arguments.at("other"), of(mlp.down_bias));
  EXPECT_THAT(add.outputs, ElementsAre(mlp.down));
  EXPECT_THAT(part->parts,
              ElementsAre(TensorPart{"up.weight", {4, 4}, 2, 2, true}, TensorPart{"up.bias", {4}, 2, 2, true},
                          TensorPart{"down.weight", {4, 4}, 2, 2, true}, TensorPart{"down.bias", {4}, 0, 1, false}));
}

TEST(Partition, canonical_ranks_split_a_row_layer_into_the_same_pieces_at_every_size) {
  const Mlp mlp(8, 2);
  const Manifest manifest = manifest_of(mlp.writer.graph(), mlp.shardings);
  for (const int size : {1, 2, 4}) {
    const Result<Partition> part = partition(mlp.writer.graph(), manifest, {{"tp", {0, size}}}, 4);
    ASSERT_TRUE(part.ok()) << part.status().to_string();
    EXPECT_THAT(ops_of(part->graph), ElementsAre("aten.linear.default", "aten.gelu.default", "aten.linear.default",
                                                 "accord.all_reduce", "aten.add.Tensor"));
    EXPECT_EQ(part->graph.nodes[2].arguments.at("pieces"), number(4 / size));
    EXPECT_EQ(part->parts[2].pieces, 4 / size);
    EXPECT_EQ(part->parts[0].pieces, 1);
  }
  EXPECT_EQ(partition(mlp.writer.graph(), manifest, {}, 8).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(partition(mlp.writer.graph(), manifest, {{"tp", {0, 3}}}, 4).status().code(), StatusCode::kInvalidArgument);
}

/// Two layers with adapters: up (column) and down (row). `shardings` replace those of the weights and adapters.
Result<Partition> adapted(const std::map<std::string, Sharding>& shardings, int canonical_ranks = 0) {
  GraphWriter writer;
  writer.symbol("tokens", 1, 8);
  const ValueId x = writer.input("x", shape_of({"tokens", "4"}));
  const ValueId adapters = writer.input("adapters", shape_of({"tokens"}));
  const auto layer = [&](const std::string& name, ValueId input, const std::string& in, const std::string& out) {
    const ValueId weight = writer.parameter(name + ".weight", shape_of({out, in}));
    const ValueId down = writer.parameter(name + ".down", shape_of({"3", "2", in}));
    const ValueId up = writer.parameter(name + ".up", shape_of({"3", out, "2"}));
    return writer.node(
        std::string(kAdaptedLinear),
        {{"input", of(input)}, {"weight", of(weight)}, {"down", of(down)}, {"up", of(up)}, {"adapters", of(adapters)}},
        shape_of({"tokens", out}));
  };
  writer.output(layer("down", layer("up", x, "4", "8"), "8", "4"));
  return partition(writer.graph(), manifest_of(writer.graph(), shardings), {{"tp", {1, 2}}}, canonical_ranks);
}

const std::map<std::string, Sharding> kOfAdapted = {
    {"up.weight", {"tp", 0, 2}}, {"up.up", {"tp", 1, 2}}, {"down.weight", {"tp", 1, 2}}, {"down.down", {"tp", 2, 2}}};

TEST(Partition, adapters_are_part_of_their_layers_sums) {
  const Result<Partition> part = adapted(kOfAdapted);
  ASSERT_TRUE(part.ok()) << part.status().to_string();
  EXPECT_THAT(ops_of(part->graph), ElementsAre(kAdaptedLinear, kAdaptedLinear, "accord.all_reduce"));
  EXPECT_THAT(
      part->parts,
      ElementsAre(TensorPart{"up.weight", {4, 4}, 2, 2, true}, TensorPart{"up.down", {3, 2, 4}, 0, 1, false},
                  TensorPart{"up.up", {3, 4, 2}, 2, 2, true}, TensorPart{"down.weight", {4, 4}, 2, 2, true},
                  TensorPart{"down.down", {3, 2, 4}, 2, 2, true}, TensorPart{"down.up", {3, 4, 2}, 0, 1, false}));
}

TEST(Partition, adapters_that_are_not_divided_like_their_layer_are_rejected) {
  for (const std::string name : {"up.up", "down.down"}) {
    auto shardings = kOfAdapted;
    shardings.erase(name);
    EXPECT_THAT(adapted(shardings).status().message(), HasSubstr("its adapters are not divided like its weight"));
  }
  const Status status = adapted(kOfAdapted, 2).status();
  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  EXPECT_THAT(status.message(), HasSubstr("has adapters, which exclude canonical_ranks"));
}

TEST(Partition, nine_units_are_split_into_five_and_four_for_two_ranks) {
  const Mlp mlp(27, 3);
  const Result<Partition> first = mlp.cut(0, 2);
  const Result<Partition> second = mlp.cut(1, 2);
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ(shape(*first, mlp.up), shape_of({"batch", "15"}));
  EXPECT_EQ(shape(*second, mlp.up), shape_of({"batch", "12"}));
  EXPECT_EQ(first->parts[0], (TensorPart{"up.weight", {15, 4}, 0, 5, true}));
  EXPECT_EQ(second->parts[2], (TensorPart{"down.weight", {4, 12}, 5, 4, true}));
}

TEST(Partition, a_group_of_one_rank_changes_nothing) {
  const Mlp mlp(8, 2);
  for (const auto& places : {std::map<std::string, GroupPlace>{}, {{"tp", {0, 1}}}}) {
    const Result<Partition> part =
        partition(mlp.writer.graph(), manifest_of(mlp.writer.graph(), mlp.shardings), places);
    ASSERT_TRUE(part.ok());
    EXPECT_EQ(to_json(part->graph), to_json(mlp.writer.graph()));
    EXPECT_EQ(part->parts[0].granules, 4U);
  }
}

/// Queries in `heads` heads, keys and values in `kv_heads`, as in an attention layer of a language model.
Graph attention(int heads, int kv_heads, bool mask_per_head, std::map<std::string, Sharding>& shardings) {
  GraphWriter writer;
  writer.symbol("b", 1, 8);
  writer.symbol("l", 1, 64);
  const ValueId x = writer.input("x", shape_of({"b", "l", "16"}));
  const ValueId mask = writer.input("mask", shape_of({"b", mask_per_head ? std::to_string(heads) : "1", "l", "l"}));
  std::vector<ValueId> split;
  for (const std::string name : {"q", "k", "v"}) {
    const int count = name == "q" ? heads : kv_heads;
    const std::string width = std::to_string(count * 8);
    const ValueId weight = writer.parameter(name, shape_of({width, "16"}));
    shardings[name] = {"tp", 0, 8 * count / kv_heads};
    const ValueId y =
        writer.node("aten.linear.default", {{"input", of(x)}, {"weight", of(weight)}}, shape_of({"b", "l", width}));
    const ValueId view = writer.node("aten.view.default", {{"self", of(y)}, {"size", numbers({"b", "l", "-1", "8"})}},
                                     shape_of({"b", "l", std::to_string(count), "8"}));
    split.push_back(writer.node("aten.permute.default", {{"self", of(view)}, {"dims", numbers({"0", "2", "1", "3"})}},
                                shape_of({"b", std::to_string(count), "l", "8"})));
  }
  const std::string q_heads = std::to_string(heads);
  const ValueId attended = writer.node("aten.scaled_dot_product_attention.default",
                                       {{"query", of(split[0])},
                                        {"key", of(split[1])},
                                        {"value", of(split[2])},
                                        {"attn_mask", of(mask)},
                                        {"enable_gqa", true}},
                                       shape_of({"b", q_heads, "l", "8"}));
  const ValueId back =
      writer.node("aten.permute.default", {{"self", of(attended)}, {"dims", numbers({"0", "2", "1", "3"})}},
                  shape_of({"b", "l", q_heads, "8"}));
  const std::string width = std::to_string(heads * 8);
  const ValueId joined = writer.node("aten.view.default", {{"self", of(back)}, {"size", numbers({"b", "l", "-1"})}},
                                     shape_of({"b", "l", width}));
  const ValueId out = writer.parameter("o", shape_of({"16", width}));
  shardings["o"] = {"tp", 1, 8 * heads / kv_heads};
  writer.output(
      writer.node("aten.linear.default", {{"input", of(joined)}, {"weight", of(out)}}, shape_of({"b", "l", "16"})));
  return writer.graph();
}

TEST(Partition, heads_are_sharded_through_views_and_attention) {
  std::map<std::string, Sharding> shardings;
  const Graph graph = attention(12, 12, false, shardings);
  const Result<Partition> part = partition(graph, manifest_of(graph, shardings), {{"tp", {0, 4}}});
  ASSERT_TRUE(part.ok()) << part.status().to_string();
  const auto shape_after = [&](std::size_t node) { return shape(*part, part->graph.nodes[node].outputs[0]); };
  EXPECT_EQ(shape_after(1), shape_of({"b", "l", "3", "8"}));
  EXPECT_EQ(part->graph.nodes[1].arguments.at("size"), numbers({"b", "l", "3", "8"}));
  EXPECT_EQ(shape_after(2), shape_of({"b", "3", "l", "8"}));
  EXPECT_EQ(shape_after(9), shape_of({"b", "3", "l", "8"}));
  EXPECT_EQ(shape_after(11), shape_of({"b", "l", "24"}));
  EXPECT_EQ(part->graph.nodes[11].arguments.at("size"), numbers({"b", "l", "24"}));
  EXPECT_EQ(part->graph.nodes.back().op, "accord.all_reduce");
  EXPECT_EQ(shape_after(13), shape_of({"b", "l", "16"}));
}

TEST(Partition, nine_query_heads_follow_their_three_key_heads) {
  std::map<std::string, Sharding> shardings;
  const Graph graph = attention(9, 3, false, shardings);
  const Result<Partition> part = partition(graph, manifest_of(graph, shardings), {{"tp", {0, 2}}});
  ASSERT_TRUE(part.ok()) << part.status().to_string();
  EXPECT_EQ(shape(*part, part->graph.nodes[2].outputs[0]), shape_of({"b", "6", "l", "8"}));
  EXPECT_EQ(shape(*part, part->graph.nodes[5].outputs[0]), shape_of({"b", "2", "l", "8"}));
}

TEST(Partition, query_heads_separated_from_their_key_heads_are_rejected) {
  std::map<std::string, Sharding> shardings;
  const Graph graph = attention(12, 4, false, shardings);
  shardings["q"].unit = 8;
  const Status status = partition(graph, manifest_of(graph, shardings), {{"tp", {0, 2}}}).status();
  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  EXPECT_THAT(status.message(), HasSubstr("12 units of 1"));
  EXPECT_THAT(status.message(), HasSubstr("4 units of 1"));
}

TEST(Partition, ranks_use_the_part_of_a_whole_mask_that_belongs_to_their_heads) {
  std::map<std::string, Sharding> shardings;
  const Graph graph = attention(12, 12, true, shardings);
  const Result<Partition> part = partition(graph, manifest_of(graph, shardings), {{"tp", {1, 2}}});
  ASSERT_TRUE(part.ok()) << part.status().to_string();
  const std::vector<Node>& nodes = part->graph.nodes;
  const auto slice =
      std::find_if(nodes.begin(), nodes.end(), [](const Node& node) { return node.op == "aten.slice.Tensor"; });
  ASSERT_NE(slice, nodes.end());
  EXPECT_EQ(slice->arguments.at("dim"), Argument(SymbolicInt(1)));
  EXPECT_EQ(slice->arguments.at("start"), Argument(SymbolicInt(6)));
  EXPECT_EQ(slice->arguments.at("end"), Argument(SymbolicInt(12)));
  EXPECT_EQ(std::next(slice)->arguments.at("attn_mask"), of(slice->outputs.front()));
}

TEST(Partition, addmm_is_sharded_like_a_linear_layer) {
  GraphWriter writer;
  const ValueId x = writer.input("x", shape_of({"3", "4"}));
  const ValueId up = writer.parameter("up", shape_of({"4", "6"}));
  const ValueId up_bias = writer.parameter("up_bias", shape_of({"6"}));
  const ValueId down = writer.parameter("down", shape_of({"6", "4"}));
  const ValueId down_bias = writer.parameter("down_bias", shape_of({"4"}));
  const ValueId y = writer.node("aten.addmm.default", {{"self", of(up_bias)}, {"mat1", of(x)}, {"mat2", of(up)}},
                                shape_of({"3", "6"}));
  writer.output(writer.node("aten.addmm.default", {{"self", of(down_bias)}, {"mat1", of(y)}, {"mat2", of(down)}},
                            shape_of({"3", "4"})));
  const Manifest manifest =
      manifest_of(writer.graph(), {{"up", {"tp", 1, 2}}, {"up_bias", {"tp", 0, 2}}, {"down", {"tp", 0, 2}}});
  const Result<Partition> part = partition(writer.graph(), manifest, {{"tp", {0, 3}}});
  ASSERT_TRUE(part.ok()) << part.status().to_string();
  EXPECT_THAT(ops_of(part->graph),
              ElementsAre("aten.addmm.default", "aten.mm.default", "accord.all_reduce", "aten.add.Tensor"));
  EXPECT_EQ(part->graph.nodes[1].arguments.at("self"), of(y));
  EXPECT_EQ(part->parts[0].shape, (std::vector<std::int64_t>{4, 2}));
  EXPECT_EQ(part->parts[2].shape, (std::vector<std::int64_t>{2, 4}));
}

TEST(Partition, more_ranks_than_units_is_an_error_that_gives_the_number_of_units) {
  const Mlp mlp(8, 4);
  const Status status = mlp.cut(0, 3).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("\"up.weight\""));
  EXPECT_THAT(status.message(), HasSubstr("2 units of 4"));
  EXPECT_THAT(status.message(), HasSubstr("3 ranks"));
}

TEST(Partition, an_unknown_group_names_the_nearest_one) {
  const Mlp mlp(8, 2);
  const Status status =
      partition(mlp.writer.graph(), manifest_of(mlp.writer.graph(), mlp.shardings), {{"tpp", {0, 2}}}).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("\"tp\""));
}

TEST(Partition, a_rank_outside_its_group_is_an_error) {
  const Mlp mlp(8, 2);
  EXPECT_EQ(mlp.cut(2, 2).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(mlp.cut(-1, 2).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(mlp.cut(0, 0).status().code(), StatusCode::kInvalidArgument);
}

TEST(Partition, a_row_weight_with_different_units_than_its_input_is_rejected) {
  Mlp mlp(8, 2);
  mlp.shardings["down.weight"].unit = 4;
  const Status status = mlp.cut(0, 2).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("4 units of 2"));
  EXPECT_THAT(status.message(), HasSubstr("2 units of 4"));
  EXPECT_THAT(status.message(), HasSubstr("layer2"));
}

TEST(Partition, a_row_layer_needs_a_sharded_input) {
  Mlp mlp(8, 2);
  mlp.shardings.erase("up.weight");
  mlp.shardings.erase("up.bias");
  const Status status = mlp.cut(0, 2).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("give the layer before it a column rule"));
}

TEST(Partition, a_column_bias_must_be_sharded_like_its_weight) {
  Mlp mlp(8, 2);
  mlp.shardings.erase("up.bias");
  EXPECT_THAT(mlp.cut(0, 2).status().message(), HasSubstr("its bias is not divided like it"));
}

TEST(Partition, an_output_sharded_in_its_last_dimension_is_gathered) {
  Mlp mlp(10, 2);
  GraphWriter writer = mlp.writer;
  writer.output(mlp.gelu);
  const Result<Partition> part =
      partition(writer.graph(), manifest_of(writer.graph(), mlp.shardings), {{"tp", {1, 3}}});
  ASSERT_TRUE(part.ok()) << part.status().to_string();
  const Node& gather = part->graph.nodes.back();
  EXPECT_EQ(gather.op, "accord.all_gather");
  EXPECT_EQ(gather.arguments.at("self"), of(mlp.gelu));
  EXPECT_EQ(gather.arguments.at("widths"), Argument(std::vector<SymbolicInt>{4, 4, 2}));
  EXPECT_EQ(part->graph.outputs.back(), gather.outputs.front());
  EXPECT_EQ(shape(*part, gather.outputs.front()), shape_of({"batch", "10"}));
}

TEST(Partition, an_output_sharded_in_another_dimension_is_rejected) {
  Mlp mlp(8, 2);
  GraphWriter writer = mlp.writer;
  writer.output(writer.node("aten.permute.default", {{"self", of(mlp.gelu)}, {"dims", std::vector<SymbolicInt>{1, 0}}},
                            shape_of({"8", "batch"})));
  const Status status =
      partition(writer.graph(), manifest_of(writer.graph(), mlp.shardings), {{"tp", {0, 2}}}).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("row rule"));
}

TEST(Partition, an_op_that_cannot_be_sharded_is_named_with_its_source_line) {
  const Mlp mlp(8, 2);
  GraphWriter writer = mlp.writer;
  const ValueId sum =
      writer.node("aten.sum.dim_IntList", {{"self", of(mlp.up)}, {"dim", numbers({"-1"})}}, shape_of({"batch"}));
  writer.output(sum);
  Status status = partition(writer.graph(), manifest_of(writer.graph(), mlp.shardings), {{"tp", {0, 2}}}).status();
  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  EXPECT_THAT(status.message(), HasSubstr("aten.sum.dim_IntList"));
  EXPECT_THAT(status.message(), HasSubstr("layer3"));
  EXPECT_THAT(status.message(), HasSubstr("model.py:3"));

  GraphWriter other = mlp.writer;
  other.output(other.node("aten.topk.default", {{"self", of(mlp.up)}, {"k", number(1)}}, shape_of({"batch", "1"})));
  status = partition(other.graph(), manifest_of(other.graph(), mlp.shardings), {{"tp", {0, 2}}}).status();
  EXPECT_THAT(status.message(), HasSubstr("no rule is known for this op"));
}

}  // namespace
}  // namespace accord::engine
