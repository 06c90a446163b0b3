// MSCCL++ execution plans with switch channels: as plans through multicast memory, and as ordinary plans.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "unit/plan/mscclpp_checks.hpp"
#include "unit/plan/mscclpp_switch_plans.hpp"

namespace accord::plan {
namespace {

using namespace testing;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr SwitchOps kBoth[] = {SwitchOps::kMulticast, SwitchOps::kOrdinary};

/// Returns how many steps of all ranks have a chunk of every rank.
long steps_by_switch(const Plan& plan) {
  long count = 0;
  const auto is_every = [](const Chunk& chunk) { return chunk.rank == kEveryRank; };
  for (const Program& program : plan.programs)
    for (const auto& lane : program.lanes)
      count += std::ranges::count_if(lane.steps, [&](const Step& step) {
        return std::ranges::any_of(step.sources, is_every) || std::ranges::any_of(step.destinations, is_every);
      });
  return count;
}

TEST(MscclppSwitch, plans_match_the_definition_of_their_collective) {
  std::mt19937 random(7);
  for (const int ranks : {2, 4, 8}) {
    for (const NamedText& named : switch_plans(ranks)) {
      for (const SwitchOps ops : kBoth) {
        SCOPED_TRACE(
            fmt::format("{} of {}, {}", named.name, ranks, ops == SwitchOps::kMulticast ? "multicast" : "ordinary"));
        const Plan plan = imported(named.plan, ops);
        ASSERT_EQ(plan.size, ranks);
        expect_correct(plan, random);
      }
    }
  }
}

TEST(MscclppSwitch, ops_use_multicast_unless_disabled) {
  const Plan sums = imported(switch_in_place(4), SwitchOps::kMulticast);
  EXPECT_EQ(sums.order, Order::kSwitch);
  EXPECT_EQ(sums.multicast_chunks, 4);
  EXPECT_EQ(sums.scratch_chunks, 0);
  EXPECT_EQ(steps_by_switch(sums), 4) << "each rank's chunk once";
  const Plan gathers = imported(switch_all_gather(4, false), SwitchOps::kMulticast);
  EXPECT_EQ(gathers.order, Order::kNone);
  EXPECT_EQ(steps_by_switch(gathers), 8) << "two chunks of each rank";
  for (const NamedText& named : switch_plans(4)) {
    const Plan ordinary = imported(named.plan, SwitchOps::kOrdinary);
    EXPECT_EQ(ordinary.multicast_chunks, 0) << named.name;
    EXPECT_NE(ordinary.order, Order::kSwitch) << named.name;
    EXPECT_EQ(steps_by_switch(ordinary), 0) << named.name;
  }
  EXPECT_EQ(imported(switch_in_place(4), SwitchOps::kOrdinary).order, Order::kCanonical);
}

TEST(MscclppSwitch, packets_are_preserved) {
  for (const SwitchOps ops : kBoth) {
    const Plan plan = imported(switch_packets_all_gather(4), ops);
    EXPECT_EQ(plan.packet_chunks, 4);
    EXPECT_EQ(plan.multicast_chunks, 0);
    EXPECT_EQ(plan.signals, 0);
  }
}

// Each half of the four ranks sums by its own switch, then each rank reads the other half's sum.
TEST(MscclppSwitch, channels_of_some_ranks_become_ordinary_steps) {
  Text plan("allreduce", "Simple", false, 4, 1, 1, 2);
  plan.add_switch("s", {0, 1});
  plan.add_switch("s", {2, 3});
  for (int r = 0; r < 4; ++r)
    plan.ops(r).push_back(Text::op("copy", Json::array({Text::own("i", 0)}), Json::array({Text::own("s", 0)})));
  plan.meet();
  for (const int r : {0, 2})
    plan.ops(r).push_back(Text::switch_op("glres", Text::at_switch(0, 0), Text::at_switch(0, 1)));
  plan.meet();
  for (int r = 0; r < 4; ++r) {
    const Json sources = Json::array({Text::own("s", 1), Text::of(r, (r + 2) % 4, "s", 1)});
    plan.ops(r).push_back(Text::op("rre", sources, Json::array({Text::own("o", 0)})));
  }
  plan.meet();
  const Plan made = imported(plan, SwitchOps::kMulticast);
  EXPECT_EQ(made.multicast_chunks, 0);
  EXPECT_EQ(made.order, Order::kCanonical);
  std::mt19937 random(1);
  const auto wrong = run_randomly(made, {.count = 40, .slice = 9, .combine = add}, random);
  EXPECT_FALSE(wrong) << *wrong;
}

// The second of the op's destinations is of some ranks only.
TEST(MscclppSwitch, an_op_to_channels_of_all_ranks_and_of_some_becomes_ordinary_steps) {
  Text plan("allgather", "Simple", false, 4, 1, 4, 4);
  plan.add_switch("o");
  for (const std::vector<int>& pair : {std::vector<int>{0, 1}, std::vector<int>{2, 3}}) plan.add_switch("s", pair);
  plan.meet();
  for (int r = 0; r < 4; ++r)
    plan.ops(r).push_back({{"name", "gstore"},
                           {"channel_type", "switch"},
                           {"src_buff", Json::array({Text::own("i", 0)})},
                           {"dst_buff", Json::array({Text::at_switch(0, r), Text::at_switch(1, r)})}});
  plan.meet();
  const Plan made = imported(plan, SwitchOps::kMulticast);
  EXPECT_EQ(made.multicast_chunks, 0);
  std::mt19937 random(1);
  expect_correct(made, random);
}

TEST(MscclppSwitch, ops_that_a_switch_does_not_support_are_rejected_with_a_remedy) {
  // In place, the single input chunk of a rank is a different chunk of the output on each rank.
  Text uneven("allgather", "Simple", true, 2, 1, 2, 0);
  uneven.add_switch("i");
  uneven.meet();
  for (int r = 0; r < 2; ++r)
    uneven.ops(r).push_back(Text::switch_op("gstore", Text::own("i", 0), Text::at_switch(0, 0)));
  EXPECT_EQ(refusal(uneven).code(), StatusCode::kUnsupported);
  EXPECT_THAT(refusal(uneven).message(), AllOf(HasSubstr("ops[2]"), HasSubstr("o[0] of rank 0 and o[1] of rank 1"),
                                               HasSubstr("may be imported as ordinary copies and sums")));

  Text read_by_peer("allgather", "Simple", false, 2, 1, 2, 1);
  read_by_peer.add_switch("s");
  read_by_peer.ops(0).push_back(Text::switch_op("gstore", Text::own("i", 0), Text::at_switch(0, 0)));
  read_by_peer.meet();
  for (int r = 0; r < 2; ++r)
    read_by_peer.ops(r).push_back(
        Text::op("get", Json::array({Text::of(r, 1 - r, "s", 0)}), Json::array({Text::own("o", 0)})));
  EXPECT_THAT(refusal(read_by_peer).message(), HasSubstr("a peer reads by itself what a switch has written"));

  Text twice = switch_in_place(2);
  twice.ops(0).push_back(Text::switch_op("glres", Text::at_switch(0, 0), Text::at_switch(0, 0)));
  for (const SwitchOps ops : kBoth) EXPECT_EQ(refusal(twice, ops).code(), StatusCode::kInvalidArgument);
}

TEST(MscclppSwitch, a_missing_signal_is_a_race_that_the_verifier_names) {
  Text plan = switch_in_place(2);
  for (int rank = 0; rank < 2; ++rank) {
    plan.ops(rank).erase(0);
    plan.ops(rank).erase(0);
  }
  EXPECT_THAT(refusal(plan).message(), AllOf(HasSubstr("lane 0, step"), HasSubstr("multicast[")));
}

TEST(MscclppSwitch, damaged_plans_are_rejected_with_the_location) {
  const auto group = [](Text& t) -> Json& { return t.json["gpus"][1]["channels"][1]["rank_groups"][0]; };
  const std::vector<Damage> all = {
      {"no memory", [](Text& t) { t.json["gpus"][1]["channels"][1].erase("buffer_type"); },
       "gpus[1].channels[1]: lacks \"buffer_type\""},
      {"no groups", [](Text& t) { t.json["gpus"][1]["channels"][1].erase("rank_groups"); }, "lacks \"rank_groups\""},
      {"no ranks", [&](Text& t) { group(t).erase("ranks"); }, "rank_groups[0]: lacks \"ranks\""},
      {"rank", [&](Text& t) { group(t)["ranks"][0] = 2; }, "ranks[0]: 2 is out of bounds: 0 to 1"},
      {"rank twice", [&](Text& t) { group(t)["ranks"][0] = 1; }, "ranks[1]: rank 1 appears twice"},
      {"own rank", [&](Text& t) { group(t)["ranks"] = Json::array({0}); }, "ranks: rank 1 is missing"},
      {"channel", [](Text& t) { t.json["gpus"][1]["threadblocks"][0]["channels"][1]["channel_ids"][0] = 1; },
       "threadblocks[0].channels[1].channel_ids[0]: 1 is out of bounds: 0 to 0"},
      {"op's channel", [](Text& t) { t.ops(1)[2]["src_buff"][0]["switch_channel_id"] = 1; },
       "src_buff[0].switch_channel_id: 1 is out of bounds: 0 to 0"},
      {"own memory", [](Text& t) { t.ops(1)[2]["src_buff"][0] = Text::own("i", 0); },
       "src_buff[0]: a \"switch_channel_id\" is expected here"},
      {"index", [](Text& t) { t.ops(1)[2]["dst_buff"][0]["index"] = 2; }, "index: 2 is out of bounds: 0 to 1"},
      {"two sources", [](Text& t) { t.ops(1)[2]["src_buff"].push_back(t.ops(1)[2]["src_buff"][0]); },
       "glres has one source and one destination"},
      {"sizes", [](Text& t) { t.ops(1)[2]["src_buff"][0] = Text::at_switch(0, 0, 2); }, "have different sizes"},
      {"signal", [](Text& t) { t.ops(1)[0]["channel_type"] = "switch"; }, "a switch channel connects no pair of ranks"},
      {"switch for a peer",
       [](Text& t) {
         t.ops(1)[2] = Text::op("put", Json::array({Text::own("i", 0)}), Json::array({Text::at_switch(0, 0)}));
       },
       "dst_buff[0]: a peer's memory"},
  };
  for (const Damage& damage : all) {
    Text plan = switch_in_place(2);
    damage.make(plan);
    for (const SwitchOps ops : kBoth) {
      const Status status = refusal(plan, ops);
      EXPECT_THAT(status.message(), HasSubstr(damage.message)) << damage.name;
      EXPECT_EQ(status.code(), StatusCode::kCorrupt) << damage.name;
    }
  }
}

TEST(MscclppSwitch, any_single_change_is_rejected_or_harmless) {
  std::mt19937 random(3);
  for (const NamedText& named : switch_plans(2))
    for (const SwitchOps ops : kBoth) expect_changes_harmless(named.plan, ops, 80, random);
}

}  // namespace
}  // namespace accord::plan
