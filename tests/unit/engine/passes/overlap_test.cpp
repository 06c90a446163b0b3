// Rows in two halves around sums over the ranks: the order of the nodes. tests/python/numerics/test_overlap_sums.py
// checks that no bit changes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/host/target.hpp"
#include "engine/ops/op_registry.hpp"
#include "engine/passes/overlap_sums.hpp"
#include "engine/program/program.hpp"
#include "unit/engine/graph/graph_writer.hpp"

namespace accord::engine {
namespace {

using ::testing::ElementsAre;

const std::string kStart = "accord.all_reduce_start";
const std::string kWait = "accord.all_reduce_wait";
const std::string kNorm = "accord.add_rms_norm";
const std::string kLinear = "aten.linear.default";

/// The end of a layer, the column-parallel product of the next one, and then an op that needs all rows.
struct OverlappedLayers {
  OverlappedLayers() {
    writer.symbol("tokens", 1, 100);
    const SymbolicShape rows = shape_of({"1", "tokens", "4"});
    const ValueId x = writer.input("x", rows);
    const ValueId residual = writer.input("residual", rows);
    const ValueId weight = writer.parameter("w", shape_of({"4", "4"}));
    const ValueId partial = writer.node(kLinear, {{"input", of(x)}, {"weight", of(weight)}}, rows);
    const ValueId norm = writer.node("accord.all_reduce_add_rms_norm",
                                     {{"self", of(partial)},
                                      {"residual", of(residual)},
                                      {"group", text("tp")},
                                      {"normalized_shape", numbers({"4"})}},
                                     rows);
    sum = writer.more_output(rows);
    const ValueId next = writer.node(kLinear, {{"input", of(norm)}, {"weight", of(weight)}}, rows);
    const ValueId heads =
        writer.node("aten.view.default", {{"self", of(next)}, {"size", shape_of({"1", "tokens", "2", "2"})}},
                    shape_of({"1", "tokens", "2", "2"}));
    summed = writer.node("aten.cumsum.default", {{"self", of(heads)}, {"dim", number(1)}},
                         shape_of({"1", "tokens", "2", "2"}));
    writer.output(summed);
  }
  Result<std::optional<DividedGraph>> divided(std::int64_t tokens, std::int64_t least, bool peers = true) const {
    const std::map<std::string, std::int64_t> symbols = {{"tokens", tokens}};
    return overlap_sums(writer.graph(),
                        {symbols, least, [&](const std::string& group) { return peers && group == "tp"; }});
  }
  GraphWriter writer;
  ValueId sum = -1;
  ValueId summed = -1;
};

TEST(OverlapSums, each_sum_overlaps_with_the_other_half) {
  const OverlappedLayers layers;
  const Result<std::optional<DividedGraph>> made = layers.divided(50, 8);
  ASSERT_TRUE(made.ok() && made->has_value());
  const DividedGraph& divided = **made;
  const std::string slice = "aten.slice.Tensor";
  const std::string view = "aten.view.default";
  EXPECT_THAT(ops_of(divided.graph),
              ElementsAre(slice, slice, slice, slice, kLinear, kStart, kLinear, kStart, kWait, kNorm, kLinear, view,
                          kWait, kNorm, kLinear, view, "aten.cat.default", "aten.cumsum.default"));
  EXPECT_THAT(divided.origins, ElementsAre(0, 0, 1, 1, 0, 1, 0, 1, 1, 1, 2, 3, 1, 1, 2, 3, 4, 4));
  const auto rows_of = [&](std::size_t node) {
    const ValueId id = divided.graph.nodes[node].outputs.front();
    return divided.graph.values[static_cast<std::size_t>(id)].shape[1].constant();
  };
  EXPECT_EQ(rows_of(4), 32);
  EXPECT_EQ(rows_of(6), 18);
  EXPECT_EQ(rows_of(17), 50);
  EXPECT_EQ(divided.graph.nodes[11].arguments.at("size"), numbers({"1", "32", "2", "2"}));
  EXPECT_EQ(divided.graph.nodes[9].outputs.size(), 2U);
}

TEST(OverlapSums, fused_products_of_one_input_are_split_too) {
  GraphWriter writer;
  const SymbolicShape rows = shape_of({"50", "4"});
  const ValueId x = writer.input("x", rows);
  const ValueId weight = writer.parameter("w", shape_of({"4", "4"}));
  const ValueId partial = writer.node(kLinear, {{"input", of(x)}, {"weight", of(weight)}}, rows);
  const ValueId sum = writer.node("accord.all_reduce", {{"self", of(partial)}, {"group", text("tp")}}, rows);
  const ValueId gated = writer.node(
      "accord.gated_linear",
      {{"input", of(sum)}, {"weight", of(weight)}, {"gate", of(weight)}, {"activation", text("silu")}}, rows);
  const ValueId first = writer.node("accord.linears",
                                    {{"input", of(gated)},
                                     {"weights", std::vector<ValueRef>{{weight}, {weight}}},
                                     {"biases", std::vector<ValueRef>{{-1}, {-1}}}},
                                    rows);
  writer.output(first);
  writer.output(writer.more_output(rows));
  const Result<std::optional<DividedGraph>> made =
      overlap_sums(writer.graph(), {{}, 8, [](const std::string&) { return true; }});
  ASSERT_TRUE(made.ok() && made->has_value());
  const std::string slice = "aten.slice.Tensor", cat = "aten.cat.default";
  EXPECT_THAT(ops_of((*made)->graph),
              ElementsAre(slice, slice, kLinear, kStart, kLinear, kStart, kWait, "accord.gated_linear",
                          "accord.linears", kWait, "accord.gated_linear", "accord.linears", cat, cat));
}

TEST(OverlapSums, the_halves_of_an_output_are_joined) {
  OverlappedLayers layers;
  layers.writer.output(layers.sum);
  const Result<std::optional<DividedGraph>> made = layers.divided(3, 3);
  ASSERT_TRUE(made.ok() && made->has_value());
  const Node& last = (*made)->graph.nodes.back();
  EXPECT_EQ(last.op, "aten.cat.default");
  EXPECT_EQ((*made)->origins.back(), layers.writer.graph().nodes.size() - 1);
  EXPECT_THAT(last.outputs, ElementsAre(layers.sum));
}

TEST(OverlapSums, few_rows_and_groups_of_one_rank_are_unchanged) {
  const OverlappedLayers layers;
  EXPECT_FALSE(layers.divided(7, 8)->has_value());
  EXPECT_FALSE(layers.divided(1, 1)->has_value());
  EXPECT_FALSE(layers.divided(50, 8, false)->has_value());
}

TEST(OverlapSums, a_sum_that_was_not_started_is_not_waited_for) {
  GraphWriter writer;
  const SymbolicShape shape = shape_of({"2", "3"});
  writer.output(writer.node(kWait, {{"self", of(writer.input("x", shape))}}, shape));
  const Parameters no_parameters;
  const std::map<std::string, int> no_groups;
  const Result<Program> program =
      prepare_program({writer.graph(), no_parameters, host::target(), find_op, no_groups, 1}, {});
  ASSERT_TRUE(program.ok()) << program.status().to_string();
  std::vector<StartedSum> started;
  const Status status = program->steps.front().run({.bases = program->bases, .started = &started});
  EXPECT_EQ(status.code(), StatusCode::kCorrupt);
  EXPECT_EQ(status.message(), "\"accord.all_reduce_wait\" in module \"layer0\" (model.py:0): its sum was not started");
}

}  // namespace
}  // namespace accord::engine
