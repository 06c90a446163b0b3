// Layers of experts that are divided by experts, checked by value.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/partition/partition.hpp"
#include "engine/report/node_work.hpp"
#include "unit/engine/graph/graph_writer.hpp"

namespace accord::engine {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// batch * length rows of 4 through 2 of 7 experts of inner size 6.
struct DividedMixture {
  explicit DividedMixture(const std::string& rows = "batch*length") {
    writer.symbol("batch", 1, 8);
    writer.symbol("length", 1, 16);
    x = writer.input("x", shape_of({rows, "4"}), DType::kBFloat16);
    ids = writer.input("ids", shape_of({rows, "2"}), DType::kInt64);
    const ValueId weights = writer.input("weights", shape_of({rows, "2"}));
    const ValueId up = writer.parameter("up", shape_of({"7", "6", "4"}));
    const ValueId down = writer.parameter("down", shape_of({"7", "4", "6"}));
    y = writer.node(
        "accord.experts.default",
        {{"input", of(x)}, {"experts", of(ids)}, {"weights", of(weights)}, {"up", of(up)}, {"down", of(down)}},
        shape_of({rows, "4"}), DType::kBFloat16);
    writer.output(y);
  }
  Result<Partition> cut(const std::string& group, Rank rank, int size, const std::string& down_group = "") const {
    const std::string& other = down_group.empty() ? group : down_group;
    Manifest manifest = manifest_of(writer.graph(), {{"up", {group, 0, 1}}, {"down", {other, 0, 1}}});
    manifest.groups.emplace_back("dp");
    manifest.rules = {{"*", ParallelStyle::kExpert, 1, group}};
    return partition(writer.graph(), manifest, {{group, {rank, size}}}, 0, "batch");
  }
  GraphWriter writer;
  ValueId x, ids, y;
};

TEST(PartitionExperts, ranks_with_the_same_rows_sum_the_outputs_of_their_experts) {
  const DividedMixture mixture;
  const Result<Partition> part = mixture.cut("tp", 1, 3);  // of seven experts: three, two and two
  ASSERT_TRUE(part.ok()) << part.status().to_string();
  EXPECT_THAT(ops_of(part->graph), ElementsAre("accord.experts", "accord.all_reduce"));
  const Node& experts = part->graph.nodes[0];
  EXPECT_EQ(experts.arguments.at("first_expert"), Argument(SymbolicInt(3)));
  EXPECT_EQ(experts.arguments.at("experts_in_all"), Argument(SymbolicInt(7)));
  EXPECT_EQ(part->graph.nodes[1].arguments.at("self"), of(experts.outputs[0]));
  EXPECT_THAT(part->graph.nodes[1].outputs, ElementsAre(mixture.y));
  EXPECT_THAT(part->parts,
              ElementsAre(TensorPart{"up", {2, 6, 4}, 3, 2, true}, TensorPart{"down", {2, 4, 6}, 3, 2, true}));
  // Two of seven experts: eight of the 5 * 3 * 2 choices, through two matrices of 24.
  const Result<NodeWork> work = work_of(part->graph, experts, {{"batch", 5}, {"length", 3}}, {});
  ASSERT_TRUE(work.ok()) << work.status().to_string();
  EXPECT_EQ(work->flops, 2U * 8 * (24 + 24));
}

TEST(PartitionExperts, rows_of_a_shared_batch_are_dispatched_to_the_experts_and_combined) {
  const DividedMixture mixture;
  const Result<Partition> part = mixture.cut("dp", 0, 3);
  ASSERT_TRUE(part.ok()) << part.status().to_string();
  EXPECT_THAT(ops_of(part->graph), ElementsAre("accord.dispatch", "accord.dispatched_experts", "accord.combine"));
  const Node& dispatch = part->graph.nodes[0];
  const Node& experts = part->graph.nodes[1];
  const Node& combine = part->graph.nodes[2];
  const auto value = [&](ValueId id) -> const Value& { return part->graph.values[static_cast<std::size_t>(id)]; };
  EXPECT_EQ(dispatch.arguments.at("self"), of(mixture.x));
  EXPECT_EQ(dispatch.arguments.at("tokens_of_largest"),
            Argument(*SymbolicInt::parse("batch*length + length")));  // another rank may have one more text
  ASSERT_EQ(dispatch.outputs.size(), 3U);
  // From three ranks, with each row going to two of the three experts here.
  const SymbolicShape most = shape_of({"6*batch*length + 6*length"});
  EXPECT_EQ(value(dispatch.outputs[0]).shape, shape_of({"6*batch*length + 6*length", "4"}));
  EXPECT_EQ(value(dispatch.outputs[0]).dtype, DType::kBFloat16);
  EXPECT_EQ(value(dispatch.outputs[1]).shape, most);
  EXPECT_EQ(value(dispatch.outputs[1]).dtype, DType::kFloat32);
  EXPECT_EQ(value(dispatch.outputs[2]).shape, shape_of({"4"}));
  EXPECT_EQ(value(dispatch.outputs[2]).dtype, DType::kInt64);
  EXPECT_EQ(experts.arguments.at("input"), of(dispatch.outputs[0]));
  EXPECT_EQ(experts.arguments.at("weights"), of(dispatch.outputs[1]));
  EXPECT_EQ(experts.arguments.at("experts"), of(dispatch.outputs[2]));
  EXPECT_EQ(combine.arguments.at("self"), of(experts.outputs[0]));
  EXPECT_EQ(combine.arguments.at("experts"), of(mixture.ids));
  EXPECT_THAT(combine.outputs, ElementsAre(mixture.y));
  for (const Node& node : part->graph.nodes) EXPECT_EQ(node.module, "layer0");
  EXPECT_THAT(part->parts,
              ElementsAre(TensorPart{"up", {3, 6, 4}, 0, 3, true}, TensorPart{"down", {3, 4, 6}, 0, 3, true}));
  const Result<NodeWork> work = work_of(part->graph, experts, {{"batch", 5}, {"length", 3}}, {});
  ASSERT_TRUE(work.ok()) << work.status().to_string();
  EXPECT_EQ(work->flops, 2U * 5 * 3 * 2 * (24 + 24));
}

TEST(PartitionExperts, a_single_rank_has_all_experts) {
  for (const char* group : {"tp", "dp"}) {
    const Result<Partition> part = DividedMixture().cut(group, 0, 1);
    ASSERT_TRUE(part.ok()) << part.status().to_string();
    EXPECT_THAT(ops_of(part->graph), ElementsAre("accord.experts.default"));
  }
}

TEST(PartitionExperts, invalid_partitions_are_rejected) {
  EXPECT_THAT(DividedMixture().cut("tp", 0, 8).status().message(), HasSubstr("7 units of 1 to share"));
  EXPECT_THAT(DividedMixture().cut("tp", 0, 2, "ep").status().message(), HasSubstr("not divided alike"));
  const Status status = DividedMixture("17*length - batch").cut("dp", 0, 2).status();
  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  EXPECT_THAT(status.message(), HasSubstr("decreases as the batch grows"));
}

}  // namespace
}  // namespace accord::engine
