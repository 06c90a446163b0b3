// The components of an engine: memory plan, states, layouts, and weights woven from their units.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <set>

#include "engine/graph/ops.hpp"
#include "engine/ops/op_registry.hpp"
#include "engine/program/memory_plan.hpp"
#include "engine/program/parameters.hpp"
#include "engine/program/tensor.hpp"
#include "engine/runtime/states.hpp"
#include "unit/engine/graph/graph_writer.hpp"

namespace accord::engine {
namespace {

using ::testing::HasSubstr;

TEST(MemoryPlanning, pieces_with_overlapping_lifetimes_never_overlap_and_free_space_is_reused) {
  std::mt19937 random(5);
  for (int round = 0; round < 200; ++round) {
    std::vector<Lifetime> lifetimes;
    std::size_t sum = 0;
    for (int i = 0; i < 40; ++i) {
      const int first = static_cast<int>(random() % 50);
      lifetimes.push_back({random() % 5000, first, first + static_cast<int>(random() % 8)});
      sum += (lifetimes.back().bytes + 64) / 64 * 64 + 64;
    }
    const MemoryPlan plan = plan_memory(lifetimes);
    EXPECT_LT(plan.bytes, sum);
    for (std::size_t a = 0; a < lifetimes.size(); ++a) {
      EXPECT_EQ(plan.offsets[a] % 64, 0U);
      EXPECT_LE(plan.offsets[a] + lifetimes[a].bytes, plan.bytes);
      for (std::size_t b = 0; b < a; ++b) {
        const bool together = lifetimes[a].first <= lifetimes[b].last && lifetimes[b].first <= lifetimes[a].last;
        const bool apart = plan.offsets[a] + lifetimes[a].bytes <= plan.offsets[b] ||
                           plan.offsets[b] + lifetimes[b].bytes <= plan.offsets[a];
        ASSERT_TRUE(!together || apart);
      }
    }
  }
}

TEST(MemoryPlanning, a_chain_needs_two_buffers) {
  std::vector<Lifetime> chain;
  for (int i = 0; i < 10; ++i) chain.push_back({1000, i, i + 1});
  EXPECT_EQ(plan_memory(chain).bytes, 2048U);
}

TEST(MemoryPlanning, with_very_many_pieces_the_smallest_do_not_share_memory) {
  // With a time quadratic in the number of pieces, this would take minutes.
  std::vector<Lifetime> lifetimes;
  const std::size_t small = 300'000;
  for (std::size_t i = 0; i < small; ++i) lifetimes.push_back({64, static_cast<int>(i), static_cast<int>(i) + 1});
  for (std::size_t i = 0; i < kMaxSharing; ++i) lifetimes.push_back({6400, static_cast<int>(i), static_cast<int>(i)});
  const MemoryPlan plan = plan_memory(lifetimes);
  EXPECT_EQ(plan.bytes, 6400 + 64 * small);
  std::set<std::size_t> places(plan.offsets.begin(), plan.offsets.begin() + small);
  EXPECT_EQ(places.size(), small);
  EXPECT_GE(*places.begin(), 6400U);
}

TEST(ParameterUses, a_table_that_is_also_a_weight_is_stored_once_and_packed) {
  GraphWriter writer;
  const ValueId ids = writer.input("ids", shape_of({"2"}), DType::kInt64);
  const ValueId tied = writer.parameter("tied", shape_of({"5", "4"}));
  const ValueId table = writer.parameter("table", shape_of({"5", "4"}));
  const auto lookup = [&](ValueId weight) {
    return writer.node("aten.embedding.default", {{"weight", of(weight)}, {"indices", of(ids)}}, shape_of({"2", "4"}));
  };
  const ValueId sum =
      writer.node("aten.add.Tensor", {{"self", of(lookup(tied))}, {"other", of(lookup(table))}}, shape_of({"2", "4"}));
  writer.output(writer.node("aten.linear.default", {{"input", of(sum)}, {"weight", of(tied)}}, shape_of({"2", "5"})));
  const std::vector<ParameterUse> uses = parameter_uses(writer.graph());
  ASSERT_EQ(uses.size(), 2U);
  EXPECT_TRUE(uses[0].linear && uses[0].table && !uses[0].plain && !uses[0].product);
  EXPECT_TRUE(uses[1].table && !uses[1].linear && !uses[1].plain && !uses[1].product);
}

TEST(EngineStates, only_the_transitions_of_the_table_are_possible) {
  using enum EngineEvent;
  // state -> events that are allowed in it
  const std::map<EngineState, std::set<EngineEvent>> allowed = {
      {EngineState::kUnbound, {kBind, kUnbind, kClose}},
      {EngineState::kBound, {kBind, kUnbind, kRunBegins, kClose}},
      {EngineState::kRunning, {kRunBegins, kRunEnds, kClose}},
      {EngineState::kClosed, {kRunEnds, kClose}}};
  const std::map<EngineState, std::vector<EngineEvent>> way = {{EngineState::kUnbound, {}},
                                                               {EngineState::kBound, {kBind}},
                                                               {EngineState::kRunning, {kBind, kRunBegins}},
                                                               {EngineState::kClosed, {kBind, kRunBegins, kClose}}};
  for (const auto& [state, events] : allowed) {
    for (const EngineEvent event : {kBind, kUnbind, kRunBegins, kRunEnds, kClose}) {
      StateMachine machine;
      for (const EngineEvent step : way.at(state)) ASSERT_TRUE(machine.move(step).ok());
      ASSERT_EQ(machine.state(), state);
      const Status status = machine.move(event);
      EXPECT_EQ(status.ok(), events.contains(event));
      if (!status.ok()) {
        EXPECT_EQ(status.code(), StatusCode::kWrongState);
        EXPECT_EQ(machine.state(), state);
      }
    }
  }
}

TEST(EngineStates, an_engine_runs_until_its_last_run_ends) {
  using enum EngineEvent;
  StateMachine machine;
  for (const EngineEvent event : {kBind, kRunBegins, kRunBegins, kRunEnds}) ASSERT_TRUE(machine.move(event).ok());
  EXPECT_EQ(machine.state(), EngineState::kRunning);
  ASSERT_TRUE(machine.move(kRunEnds).ok());
  EXPECT_EQ(machine.state(), EngineState::kBound);
}

TEST(Layouts, a_tensor_is_rows_if_its_outer_dimensions_have_one_stride) {
  const auto layout = [](const Sizes& sizes, const Sizes& strides) { return kernels::strided_layout(sizes, strides); };
  const auto rows = as_rows(layout({2, 3, 4}, {60, 20, 1}));
  ASSERT_TRUE(rows);
  EXPECT_EQ(rows->rows, 6);
  EXPECT_EQ(rows->width, 4);
  EXPECT_EQ(rows->stride, 20);
  EXPECT_FALSE(as_rows(layout({2, 3, 4}, {70, 20, 1})));
  EXPECT_FALSE(as_rows(layout({2, 3, 4}, {12, 4, 2})));
  EXPECT_FALSE(as_rows(layout({2, 3, 4}, {0, 0, 1})));
  EXPECT_TRUE(as_rows(layout({1, 3, 4}, {0, 8, 1})));
}

TEST(OpRegistry, an_unsupported_op_is_named_with_its_module_source_and_the_nearest_one) {
  GraphWriter writer;
  const ValueId x = writer.input("x", shape_of({"2"}));
  writer.node("aten.relu.default", {{"self", of(x)}}, shape_of({"2"}));
  writer.node("aten.relu6.default", {{"self", of(x)}}, shape_of({"2"}));
  const Status status = check_supported(writer.graph());
  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  EXPECT_THAT(status.message(), HasSubstr("\"aten.relu6.default\" in module \"layer1\" (model.py:1)"));
  EXPECT_THAT(status.message(), HasSubstr("\"aten.relu.default\""));
}

TEST(OpRegistry, has_a_kernel_for_each_op_of_a_package_and_of_the_passes) {
  std::vector<std::string_view> of_packages;
  for (const OpInfo& op : known_ops()) {
    // accord.all_reduce, and a linear with accord.adapters, replace these ops.
    if (op.name != "_c10d_functional.all_reduce.default" && op.name != kAdaptedLinear) of_packages.push_back(op.name);
  }
  std::vector<std::string_view> with_kernels = op_names();
  const auto made_by_passes = [](std::string_view name) {
    return name.starts_with("accord.") && !name.ends_with(".default");
  };
  std::erase_if(with_kernels, made_by_passes);
  EXPECT_EQ(with_kernels, of_packages);
}

}  // namespace
}  // namespace accord::engine
