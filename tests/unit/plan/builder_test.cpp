#include "plan/builder.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "unit/plan/plans_for_tests.hpp"

namespace accord::plan {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

PlanBuilder all_reduce_of_two(Rank only_rank = Request::kAllRanks) {
  return PlanBuilder("mine", {.collective = Collective::kAllReduce, .only_rank = only_rank}, 2,
                     {.input_chunks = 1, .output_chunks = 1, .scratch_chunks = 1, .packet_chunks = 2});
}

std::string build_refusal(PlanBuilder&& builder) {
  const Result<Plan> plan = std::move(builder).build();
  EXPECT_FALSE(plan.ok());
  EXPECT_EQ(plan.status().code(), StatusCode::kInvalidArgument);
  return plan.status().message();
}

TEST(PlanBuilder, counts_signals_and_keeps_steps_in_their_lanes) {
  PlanBuilder builder = all_reduce_of_two();
  builder.on(0).signal(1, 4).lane(2).copy(input(0, 0), {scratch(0, 0), output(0, 0)}).lane_barrier(1);
  builder.on(1).wait(0, 4);
  const Result<Plan> plan = std::move(builder).build();
  ASSERT_TRUE(plan.ok()) << plan.status().to_string();
  EXPECT_EQ(plan->signals, 5);
  ASSERT_EQ(plan->programs[0].lanes.size(), 3U);
  EXPECT_EQ(plan->programs[0].lanes[0].steps.size(), 1U);
  EXPECT_EQ(plan->programs[0].lanes[1].steps.size(), 0U);
  EXPECT_EQ(plan->programs[0].lanes[2].steps.size(), 2U);
  EXPECT_EQ(to_string(plan->programs[0].lanes[2].steps[0]),
            "copy input[0] of rank 0 -> scratch[0] of rank 0, output[0] of rank 0");
}

TEST(PlanBuilder, omits_but_checks_the_steps_of_ranks_that_were_not_requested) {
  PlanBuilder builder = all_reduce_of_two(1);
  EXPECT_EQ(builder.ranks(), std::vector<Rank>{1});
  builder.on(0).signal(1);
  builder.on(1).wait(0);
  const Result<Plan> plan = std::move(builder).build();
  ASSERT_TRUE(plan.ok());
  EXPECT_TRUE(plan->programs[0].lanes.empty());
  EXPECT_EQ(plan->programs[1].lanes[0].steps.size(), 1U);

  PlanBuilder wrong = all_reduce_of_two(1);
  wrong.on(0).signal(2);
  EXPECT_THAT(build_refusal(std::move(wrong)), HasSubstr("there is no rank 2"));
}

TEST(PlanBuilder, turns_a_sum_of_one_operand_into_a_copy) {
  PlanBuilder builder = all_reduce_of_two();
  builder.on(0).reduce({input(0, 0)}, {output(0, 0)});
  const Result<Plan> plan = std::move(builder).build();
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->programs[0].lanes[0].steps[0].kind, StepKind::kCopy);
}

TEST(PlanBuilder, names_the_first_invalid_step) {
  PlanBuilder builder = all_reduce_of_two();
  builder.on(1).signal(0).copy(input(1, 0), {scratch(1, 1)}).signal(7);
  EXPECT_EQ(
      build_refusal(std::move(builder)),
      "plan \"mine\" (all_reduce, 2 ranks), rank 1, lane 0, step 1 (copy input[0] of rank 1 -> scratch[1] of rank 1): "
      "scratch[1] of rank 1 is out of bounds: scratch has 1 chunk");
}

TEST(PlanBuilder, rejects_a_copy_from_one_peer_to_another) {
  PlanBuilder builder("mine", {.collective = Collective::kBroadcast}, 3,
                      {.input_chunks = 1, .output_chunks = 1, .scratch_chunks = 1});
  builder.on(0).copy(scratch(1, 0), {scratch(2, 0)});
  EXPECT_THAT(build_refusal(std::move(builder)), HasSubstr("a copy may have one operand in a peer's memory"));
}

TEST(PlanBuilder, rejects_operands_that_a_step_cannot_have) {
  PlanBuilder three = all_reduce_of_two();
  three.on(0).copy(input(0, 0), {output(0, 0), scratch(0, 0), scratch(0, 0)});
  EXPECT_THAT(build_refusal(std::move(three)),
              HasSubstr("a copy needs one source and one or two destinations, not 1 and 3"));
  PlanBuilder twice = all_reduce_of_two();
  twice.on(0).copy(input(0, 0), {output(0, 0), output(0, 0)});
  EXPECT_THAT(build_refusal(std::move(twice)), HasSubstr("both destinations are output[0] of rank 0"));
  PlanBuilder own = all_reduce_of_two();
  own.on(0).put_packets(input(0, 0), packets(0, 0));
  EXPECT_THAT(build_refusal(std::move(own)), HasSubstr("rank 0 puts packets to itself"));
  PlanBuilder through_copy = all_reduce_of_two();
  through_copy.on(0).copy(input(0, 0), {packets(1, 0)});
  EXPECT_THAT(build_refusal(std::move(through_copy)), HasSubstr("must only be written by put packets"));
}

TEST(PlanBuilder, keeps_partials_for_reductions) {
  const auto refusal_of = [](auto write) {
    PlanBuilder builder("mine", {.collective = Collective::kAllReduce}, 2,
                        {.input_chunks = 1, .output_chunks = 1, .packet_chunks = 2, .partial_chunks = 1});
    write(builder.on(0));
    return build_refusal(std::move(builder));
  };
  using OnRank = PlanBuilder::OnRank;
  EXPECT_THAT(refusal_of([](OnRank on) { on.copy(input(0, 0), {partials(0, 0)}); }),
              HasSubstr("partials can only be read and written by reductions, and copied to partials"));
  EXPECT_THAT(refusal_of([](OnRank on) { on.copy(partials(1, 0), {output(0, 0)}); }),
              HasSubstr("partials can only be read and written by reductions, and copied to partials"));
  EXPECT_THAT(refusal_of([](OnRank on) {
                on.reduce({packets(0, 1), partials(0, 0)}, {output(0, 0)});
              }),
              HasSubstr("a reduction with partials cannot read packets"));
  EXPECT_THAT(refusal_of([](OnRank on) {
                on.reduce({input(0, 0), partials(0, 0)}, {partials(1, 0)});
              }),
              HasSubstr("partials[0] of rank 1 cannot be written from rank 0"));
  EXPECT_THAT(refusal_of([](OnRank on) { on.put_packets(partials(0, 0), packets(1, 0)); }),
              HasSubstr("packets are put from the rank's own input, output or scratch"));
  EXPECT_THAT(refusal_of([](OnRank on) {
                on.reduce({input(0, 0), partials(0, 1)}, {output(0, 0)});
              }),
              HasSubstr("partials[1] of rank 0 is out of bounds"));
}

TEST(PlanBuilder, rejects_ranks_and_lanes_that_do_not_exist) {
  PlanBuilder rank = all_reduce_of_two();
  rank.on(2).signal(0);
  EXPECT_THAT(build_refusal(std::move(rank)), HasSubstr("there is no rank 2, only ranks 0-1"));
  PlanBuilder lane = all_reduce_of_two();
  lane.on(0).lane(64).signal(1);
  EXPECT_THAT(build_refusal(std::move(lane)), HasSubstr("a rank has lanes 0-63"));
  PlanBuilder negative = all_reduce_of_two();
  negative.on(0).lane(-1).signal(1);
  EXPECT_THAT(build_refusal(std::move(negative)), HasSubstr("a rank has lanes 0-63"));
}

TEST(PlanBuilder, gives_send_recv_one_buffer_per_rank) {
  PlanBuilder builder("mine", {.collective = Collective::kSendRecv}, 2,
                      {.input_chunks = 1, .output_chunks = 1, .scratch_chunks = 1});
  builder.on(1).copy(input(1, 0), {scratch(1, 0)});
  EXPECT_THAT(build_refusal(std::move(builder)),
              HasSubstr("there is no input[0] of rank 1: send_recv with root 0 has none on that rank"));
}

TEST(Plan, names_are_read_back) {
  for (int i = 0; i < kCollectiveCount; ++i) {
    const auto collective = static_cast<Collective>(i);
    const auto back = collective_from_string(to_string(collective));
    ASSERT_TRUE(back.ok());
    EXPECT_EQ(*back, collective);
  }
  EXPECT_THAT(collective_from_string("allreduce").status().message(),
              AllOf(HasSubstr("allreduce"), HasSubstr("all_reduce")));
}

TEST(Plan, long_steps_are_abbreviated) {
  const Plan plan = testing::whole_plan(Collective::kAllReduce, "one_shot", 8);
  EXPECT_EQ(
      to_string(plan.programs[0].lanes[0].steps.back()),
      "reduce input[0] of rank 0, scratch[0] of rank 1, ... (5 more), scratch[0] of rank 7 -> output[0] of rank 0");
  EXPECT_EQ(to_string(plan), "plan \"one_shot\" (all_reduce, 8 ranks)");
}

TEST(Plan, scratch_needs_mapped_peers) {
  EXPECT_TRUE(needs_mapped_peers(testing::whole_plan(Collective::kAllReduce, "two_shot", 2)));
  EXPECT_FALSE(needs_mapped_peers(testing::whole_plan(Collective::kAllReduce, "packet", 2)));
  EXPECT_FALSE(needs_mapped_peers(testing::whole_plan(Collective::kBarrier, "direct", 2)));
  EXPECT_FALSE(needs_mapped_peers(testing::whole_plan(Collective::kAllReduce, "two_shot", 1)));
}

}  // namespace
}  // namespace accord::plan
