// Attention over one key head that contains its values, divided by query heads.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "engine/graph/node_access.hpp"
#include "engine/graph/ops.hpp"
#include "engine/partition/partition.hpp"
#include "engine/program/batch.hpp"
#include "unit/engine/graph/graph_writer.hpp"

namespace accord::engine {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// Returns a rank's part of an attention with a matrix for each query head before and after it, and a row-parallel
/// layer. `divided`: the matrices of heads that have a sharding.
Result<Partition> latent_attention(int kv_heads, const std::vector<std::string>& divided, GroupPlace place = {1, 2},
                                   int canonical_ranks = 0) {
  GraphWriter writer;
  writer.symbol("l", 1, 64);
  const ValueId x = writer.input("x", shape_of({"l", "6", "4"}));
  const ValueId key = writer.input("key", shape_of({"1", std::to_string(kv_heads), "l", "8"}));
  const ValueId before = writer.parameter("before", shape_of({"6", "8", "4"}));
  const ValueId after = writer.parameter("after", shape_of({"6", "3", "5"}));
  const ValueId heads =
      writer.node("accord.head_linear.default", {{"input", of(x)}, {"weight", of(before)}}, shape_of({"l", "6", "8"}));
  const ValueId turned = writer.node("aten.permute.default", {{"self", of(heads)}, {"dims", numbers({"1", "0", "2"})}},
                                     shape_of({"6", "l", "8"}));
  const ValueId query =
      writer.node("aten.unsqueeze.default", {{"self", of(turned)}, {"dim", number(0)}}, shape_of({"1", "6", "l", "8"}));
  const ValueId attended = writer.node(
      std::string(kCachedAttention),
      {{"query", of(query)}, {"key", of(key)}, {"layer", number(0)}, {"scale", 0.5}, {"value_dim", number(5)}},
      shape_of({"1", "l", "6", "5"}));
  const ValueId rows =
      writer.node("aten.squeeze.dims", {{"self", of(attended)}, {"dim", numbers({"0"})}}, shape_of({"l", "6", "5"}));
  const ValueId values = writer.node("accord.head_linear.default", {{"input", of(rows)}, {"weight", of(after)}},
                                     shape_of({"l", "6", "3"}));
  const ValueId joined =
      writer.node("aten.view.default", {{"self", of(values)}, {"size", numbers({"l", "-1"})}}, shape_of({"l", "18"}));
  const ValueId out = writer.parameter("out", shape_of({"4", "18"}));
  writer.output(writer.node("aten.linear.default", {{"input", of(joined)}, {"weight", of(out)}}, shape_of({"l", "4"})));
  std::map<std::string, Sharding> shardings = {{"out", {"tp", 1, 3}}};
  for (const std::string& name : divided) shardings[name] = {"tp", 0, 1};
  return partition(writer.graph(), manifest_of(writer.graph(), shardings), {{"tp", place}}, canonical_ranks);
}

TEST(PartitionLatentAttention, ranks_share_the_query_heads_of_one_key_head_that_each_has) {
  const Result<Partition> part = latent_attention(1, {"before", "after"});
  ASSERT_TRUE(part.ok()) << part.status().to_string();
  EXPECT_THAT(part->parts,
              ElementsAre(TensorPart{"before", {3, 8, 4}, 3, 3, true}, TensorPart{"after", {3, 3, 5}, 3, 3, true},
                          TensorPart{"out", {4, 9}, 3, 3, true}));
  EXPECT_EQ(part->graph.nodes.back().op, "accord.all_reduce");
  const std::vector<Node>& nodes = part->graph.nodes;
  const auto attention =
      std::find_if(nodes.begin(), nodes.end(), [](const Node& node) { return node.op == kCachedAttention; });
  ASSERT_NE(attention, nodes.end());
  EXPECT_EQ(part->graph.values[static_cast<std::size_t>(attention->outputs[0])].shape, shape_of({"1", "l", "3", "5"}));
  const Result<std::vector<CachedLayer>> layers = cached_layers(part->graph);
  ASSERT_TRUE(layers.ok()) << layers.status().to_string();
  ASSERT_EQ(layers->size(), 1U);
  const CachedLayer& layer = layers->front();
  EXPECT_EQ(layer.kv_heads, 1);
  EXPECT_EQ(layer.head_dim, 8);
  EXPECT_EQ(layer.value_dim, 5);
  EXPECT_EQ(layer.value_place, kernels::ValuePlace::kInKeys);
}

TEST(PartitionLatentAttention, heads_of_one_rank_are_divided_like_its_products_if_ranks_are_canonical) {
  const Result<Partition> part = latent_attention(1, {"before", "after"}, {0, 1}, 3);
  ASSERT_TRUE(part.ok()) << part.status().to_string();
  const std::vector<Node>& nodes = part->graph.nodes;
  const auto linear =
      std::find_if(nodes.begin(), nodes.end(), [](const Node& node) { return op_family(node.op) == "aten.linear"; });
  ASSERT_NE(linear, nodes.end());
  EXPECT_EQ(linear->arguments.at("pieces"), Argument(SymbolicInt(3)));
}

TEST(PartitionLatentAttention, matrices_that_do_not_fit_their_inputs_and_several_key_heads_are_rejected) {
  EXPECT_THAT(latent_attention(1, {"before"}).status().message(), HasSubstr("its weight is whole"));
  EXPECT_THAT(latent_attention(2, {"before", "after"}).status().message(), HasSubstr("are one head"));
}

}  // namespace
}  // namespace accord::engine
