// Plans that go through a switch: the steps that are allowed there, and the verifier's requirements for their sums.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "plan/cost.hpp"
#include "plan/json.hpp"
#include "unit/plan/plans_for_tests.hpp"

namespace accord::plan {
namespace {

using ::testing::AllOf;
using testing::erase_step;
using testing::find_step;
using ::testing::HasSubstr;
using testing::refusal;
using testing::steps_of;
using testing::whole_plan;

Plan sum_of_three() { return whole_plan(Collective::kAllReduce, "nvls", 3); }

std::string problem_of(void (*write)(PlanBuilder::OnRank)) {
  PlanBuilder builder("mine", {.collective = Collective::kAllReduce}, 2,
                      {.input_chunks = 1,
                       .output_chunks = 1,
                       .scratch_chunks = 1,
                       .packet_chunks = 2,
                       .partial_chunks = 1,
                       .multicast_chunks = 2});
  write(builder.on(0));
  const Result<Plan> plan = std::move(builder).build();
  EXPECT_FALSE(plan.ok());
  return plan.status().message();
}

using OnRank = PlanBuilder::OnRank;

TEST(Multicast, peer_multicast_memory_is_accessed_only_through_every_rank) {
  EXPECT_THAT(problem_of([](OnRank on) { on.copy(multicast(1, 0), {output(0, 0)}); }),
              AllOf(HasSubstr("multicast[0] of rank 1 cannot be reached from rank 0"),
                    HasSubstr("multicast of every rank at once")));
  EXPECT_THAT(problem_of([](OnRank on) { on.copy(input(0, 0), {multicast(1, 0)}); }),
              HasSubstr("multicast[0] of rank 1 cannot be written from rank 0"));
  EXPECT_THAT(problem_of([](OnRank on) { on.copy(input(0, 0), {scratch(kEveryRank, 0)}); }),
              HasSubstr("there is no scratch[0] of every rank: only multicast is of every rank at once"));
  EXPECT_THAT(problem_of([](OnRank on) { on.copy(input(0, 0), {multicast(kEveryRank, 2)}); }),
              HasSubstr("multicast[2] of every rank is out of bounds: multicast has 2 chunks"));
}

TEST(Multicast, memory_of_every_rank_is_only_read_as_a_sum_and_written_once) {
  EXPECT_THAT(problem_of([](OnRank on) { on.copy(multicast(kEveryRank, 0), {output(0, 0)}); }),
              HasSubstr("multicast[0] of every rank cannot be copied"));
  EXPECT_THAT(problem_of([](OnRank on) {
                on.reduce({multicast(kEveryRank, 0), input(0, 0)}, {output(0, 0)});
              }),
              HasSubstr("a chunk of every rank must be the only source of its sum"));
  EXPECT_THAT(problem_of([](OnRank on) {
                on.copy(input(0, 0), {multicast(kEveryRank, 0), multicast(0, 0)});
              }),
              HasSubstr("both destinations are multicast[0] of every rank"));
  EXPECT_THAT(problem_of([](OnRank on) {
                on.reduce({multicast(kEveryRank, 0)}, {multicast(kEveryRank, 0), multicast(kEveryRank, 1)});
              }),
              HasSubstr("a step may write to one peer's memory, not to several"));
  EXPECT_THAT(problem_of([](OnRank on) { on.copy(packets(0, 1), {multicast(kEveryRank, 0)}); }),
              HasSubstr("data in packets cannot be written to every rank"));
  EXPECT_THAT(problem_of([](OnRank on) {
                on.reduce({input(0, 0), scratch(1, 0)}, {multicast(kEveryRank, 0)});
              }),
              HasSubstr("a sum of several sources is copied to every rank, not written there"));
  EXPECT_THAT(problem_of([](OnRank on) { on.put_packets(multicast(0, 0), packets(1, 0)); }),
              HasSubstr("packets are put from the rank's own input, output or scratch"));
  EXPECT_THAT(problem_of([](OnRank on) { on.reduce({multicast(kEveryRank, 0)}, {partials(0, 0)}); }),
              HasSubstr("a reduction with partials cannot touch multicast"));
}

TEST(Multicast, sums_that_each_rank_requests_from_the_switch_may_differ) {
  PlanBuilder builder("one_shot_switch", {.collective = Collective::kAllReduce}, 2,
                      {.input_chunks = 1, .output_chunks = 1, .multicast_chunks = 1});
  builder.set_order(Order::kSwitch);
  for (const Rank rank : builder.ranks()) {
    const Rank peer = 1 - rank;
    builder.on(rank).copy(input(rank, 0), {multicast(rank, 0)}).signal(peer).wait(peer);
    builder.on(rank).reduce({multicast(kEveryRank, 0)}, {output(rank, 0)}).signal(peer, 1).wait(peer, 1);
  }
  const Plan plan = *std::move(builder).build();
  EXPECT_THAT(refusal(plan), HasSubstr("is not the sum of the switch that rank 0 holds: their bits may differ"));
}

TEST(Multicast, a_switch_sum_cannot_declare_another_order) {
  Plan plan = sum_of_three();
  for (const Order order : {Order::kCanonical, Order::kFixed}) {
    plan.order = order;
    EXPECT_THAT(refusal(plan), HasSubstr("a switch adds in an order of its own, not in the plan's"));
  }
}

TEST(Multicast, the_memory_of_each_rank_must_be_ready) {
  for (const int wait : {0, 1}) {  // for the data that rank 1, or 2, exposes
    Plan plan = sum_of_three();
    erase_step(steps_of(plan, 0), find_step(steps_of(plan, 0), StepKind::kWait, wait));
    for (const Rank peer : {1, 2}) {
      std::vector<Step>& steps = steps_of(plan, peer);
      std::erase_if(steps, [&](const Step& step) {
        return step.kind == StepKind::kSignal && step.peer == 0 && step.id == 0 && peer == wait + 1;
      });
    }
    EXPECT_THAT(refusal(plan), AllOf(HasSubstr("rank 0"), HasSubstr("multicast[0] of rank ")));
  }
}

TEST(Multicast, memory_that_is_written_on_all_ranks_must_not_be_in_use_on_any) {
  Plan plan = sum_of_three();  // rank 1 writes its sum where rank 2 still exposes its own part to the switch
  for (Step& step : steps_of(plan, 1))
    if (step.kind == StepKind::kReduce) step.destinations[0].index = 2;
  EXPECT_THAT(refusal(plan), HasSubstr("races with"));
}

TEST(Multicast, a_missing_contribution_is_named) {
  Plan plan = sum_of_three();  // rank 0 gives its own part as the sum
  for (Step& step : steps_of(plan, 0))
    if (step.kind == StepKind::kReduce) {
      step.kind = StepKind::kCopy;
      step.sources = {multicast(0, 0)};
    }
  EXPECT_THAT(refusal(plan), HasSubstr("lacks the contribution of ranks 1 and 2"));
}

TEST(Multicast, is_written_and_read_as_json) {
  const Plan plan = sum_of_three();
  const std::string text = to_json(plan);
  EXPECT_THAT(text, AllOf(HasSubstr(R"("packets": 0, "multicast": 3})"), HasSubstr(R"("order": "switch")"),
                          HasSubstr(R"("from": [["every", "multicast", 0]])")));
  EXPECT_EQ(plan_from_json(text).value(), plan);
  std::string other = text;
  other.replace(other.find("\"every\""), 7, "\"all\"");
  EXPECT_THAT(plan_from_json(other).status().message(), HasSubstr("a rank is a number, or \"every\""));
  other.replace(other.find("\"all\""), 5, "-2147483648");
  EXPECT_FALSE(plan_from_json(other).ok());
}

TEST(Multicast, moves_one_part_as_a_sum_and_one_part_to_all) {
  const std::size_t count = 3072;
  const Cost cost = cost_of(sum_of_three(), count, 4, 4);
  EXPECT_EQ(cost.bytes_exchanged, 2 * count * 4 / 3);
  EXPECT_EQ(cost.hops, 2);
  const Cost gathered = cost_of(whole_plan(Collective::kAllGather, "nvls", 3), count, 4, 4);
  EXPECT_EQ(gathered.bytes_exchanged, count * 4);
}

}  // namespace
}  // namespace accord::plan
