// Correct plans, each broken in one way: the verifier must name the plan, the step and the defect.

#include "plan/verifier.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

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

Plan one_shot(int size) { return whole_plan(Collective::kAllReduce, "one_shot", size); }
Plan two_shot(int size) { return whole_plan(Collective::kAllReduce, "two_shot", size); }
Plan packet(int size) { return whole_plan(Collective::kAllReduce, "packet", size); }

// An all_reduce for two ranks of two lanes each, which handle one half each.
Plan two_lanes() {
  PlanBuilder plan("two_lanes", {.collective = Collective::kAllReduce}, 2,
                   {.input_chunks = 2, .output_chunks = 2, .scratch_chunks = 2});
  plan.set_order(Order::kCanonical);
  for (const Rank rank : {0, 1}) {
    const Rank peer = 1 - rank;
    for (const int lane : {0, 1})
      plan.on(rank).lane(lane).copy(input(rank, lane), {scratch(rank, lane)}).lane_barrier(0);
    plan.on(rank).lane(0).signal(peer).wait(peer);
    for (const int lane : {0, 1}) {
      plan.on(rank).lane(lane).lane_barrier(1).reduce({scratch(0, lane), scratch(1, lane)}, {output(rank, lane)});
    }
  }
  Result<Plan> built = std::move(plan).build();
  EXPECT_TRUE(built.ok()) << built.status().to_string();
  return *built;
}

TEST(Verifier, accepts_lanes_that_meet_at_barriers) {
  for (const Aliasing aliasing : {Aliasing::kOutOfPlace, Aliasing::kInPlace}) {
    const Status status = verify(two_lanes(), aliasing);
    EXPECT_TRUE(status.ok()) << status.to_string();
  }
}

TEST(Verifier, rejects_a_missing_contribution) {
  Plan plan = packet(4);
  std::vector<Step>& steps = steps_of(plan, 1);
  Step& reduce = steps[find_step(steps, StepKind::kReduce)];
  reduce.sources[2] = reduce.sources[1];  // rank 1 counts twice, rank 2 not at all
  erase_step(steps_of(plan, 2), 2);       // rank 2's packets for rank 1, which no rank reads now
  EXPECT_THAT(refusal(plan),
              HasSubstr("plan \"packet\" (all_reduce, 4 ranks), rank 1, lane 0, step 3 (reduce packets[0] of "
                        "rank 1, input[0] of rank 1, input[0] of rank 1, packets[3] of rank 1 -> output[0] of "
                        "rank 1): output[0] of rank 1 lacks the contribution of rank 2"));
}

TEST(Verifier, rejects_a_missing_contribution_in_a_shorter_sum) {
  Plan plan = one_shot(3);
  std::vector<Step>& steps = steps_of(plan, 0);
  steps.back().sources.pop_back();
  EXPECT_THAT(refusal(plan), AllOf(HasSubstr("rank 0, lane 0, step 5 (reduce"),
                                   HasSubstr("output[0] of rank 0 lacks the contribution of rank 2")));
}

TEST(Verifier, rejects_a_double_contribution) {
  Plan plan = one_shot(3);
  std::vector<Step>& steps = steps_of(plan, 2);
  steps.back().sources.push_back(input(2, 0));
  EXPECT_THAT(refusal(plan), AllOf(HasSubstr("rank 2, lane 0, step 5 (reduce"),
                                   HasSubstr("output[0] of rank 2 holds the contribution of rank 2 2 times")));
}

TEST(Verifier, rejects_a_sum_in_another_order) {
  Plan plan = one_shot(4);
  std::vector<Step>& steps = steps_of(plan, 3);
  std::swap(steps.back().sources[1], steps.back().sources[2]);
  EXPECT_THAT(refusal(plan), AllOf(HasSubstr("rank 3, lane 0, step 7 (reduce"), HasSubstr("adds up in the wrong order"),
                                   HasSubstr("((0 + 2) + (1 + 3)) where the canonical one is ((0 + 1) + (2 + 3))")));
}

TEST(Verifier, rejects_ranks_that_wait_for_each_other) {
  Plan plan = two_shot(3);
  for (Rank rank = 0; rank < 3; ++rank) {  // all wait before they signal
    std::vector<Step>& steps = steps_of(plan, rank);
    std::stable_partition(steps.begin(), steps.end(),
                          [](const Step& step) { return step.kind == StepKind::kWait && step.id == 0; });
  }
  EXPECT_THAT(refusal(plan),
              AllOf(HasSubstr("rank 0, lane 0, step 0 (wait for signal 0 of rank 1): waits for ever (deadlock)"),
                    HasSubstr("as rank 1, lane 0, step 0 (wait for signal 0 of rank 2) comes first"),
                    HasSubstr("as rank 2, lane 0, step 0 (wait for signal 0 of rank 0) comes first")));
}

TEST(Verifier, rejects_a_deadlock_through_packets_and_lane_barriers) {
  Plan plan = packet(2);
  for (Rank rank = 0; rank < 2; ++rank) std::swap(steps_of(plan, rank)[0], steps_of(plan, rank)[1]);
  EXPECT_THAT(refusal(plan), AllOf(HasSubstr("step 0 (reduce"), HasSubstr("deadlock"), HasSubstr("comes first")));

  Plan lanes = two_lanes();
  std::swap(steps_of(lanes, 1, 1)[1], steps_of(lanes, 1, 1)[2]);  // lane 1 reaches barrier 1 before barrier 0
  EXPECT_THAT(refusal(lanes), AllOf(HasSubstr("rank 1, lane"), HasSubstr("(lane barrier "), HasSubstr("deadlock")));
}

TEST(Verifier, rejects_a_wait_for_a_signal_that_never_arrives) {
  Plan plan = two_shot(4);
  std::vector<Step>& steps = steps_of(plan, 3);
  erase_step(steps, find_step(steps, StepKind::kSignal, 4));  // notifies rank 1 that the sums are ready
  EXPECT_THAT(refusal(plan),
              AllOf(HasSubstr("plan \"two_shot\" (all_reduce, 4 ranks), rank 1, lane 0, step 15 (wait for signal 1 "
                              "of rank 3): waits for ever: rank 3 never sends this signal")));
}

TEST(Verifier, rejects_a_signal_that_no_rank_waits_for) {
  Plan plan = two_shot(3);
  std::vector<Step>& steps = steps_of(plan, 2);
  erase_step(steps, find_step(steps, StepKind::kWait, 3));
  EXPECT_THAT(refusal(plan), AllOf(HasSubstr("(signal 1 to rank 2): rank 2 never waits for this signal")));
}

TEST(Verifier, rejects_a_signal_sent_twice_in_a_round) {
  Plan plan = one_shot(2);
  std::vector<Step>& steps = steps_of(plan, 0);
  steps.insert(steps.begin(), steps[find_step(steps, StepKind::kSignal)]);
  EXPECT_THAT(refusal(plan), AllOf(HasSubstr("rank 0, lane 0, step 2 (signal 0 to rank 1): the signal is sent twice"),
                                   HasSubstr("rank 0, lane 0, step 0 (signal 0 to rank 1) sends it too")));
}

TEST(Verifier, accepts_lanes_ordered_by_self_signals_and_rejects_them_without) {
  Plan plan = two_lanes();
  for (const int lane : {0, 1}) {
    std::vector<Step>& steps = steps_of(plan, 0, lane);
    ASSERT_EQ(steps[1].kind, StepKind::kLaneBarrier);
    steps[1] = {
        .kind = lane == 1 ? StepKind::kSignal : StepKind::kWait, .peer = 0, .id = 0, .destinations = {}, .sources = {}};
  }
  EXPECT_TRUE(verify(plan, Aliasing::kOutOfPlace).ok()) << verify(plan, Aliasing::kOutOfPlace).to_string();
  erase_step(steps_of(plan, 0, 0), 1);
  erase_step(steps_of(plan, 0, 1), 1);
  EXPECT_THAT(refusal(plan), HasSubstr("races with rank 0, lane 1, step 0"));
}

TEST(Verifier, rejects_a_race_between_lanes) {
  Plan plan = two_lanes();
  for (const int lane : {0, 1}) {
    std::vector<Step>& steps = steps_of(plan, 0, lane);
    erase_step(steps, find_step(steps, StepKind::kLaneBarrier, 0));
  }
  // Lane 0 signals the peer that everything is there, but lane 1 may still be copying.
  EXPECT_THAT(
      refusal(plan),
      AllOf(HasSubstr(
                "rank 1, lane 1, step 3 (reduce scratch[1] of rank 0, scratch[1] of rank 1 -> output[1] of rank 1)"),
            HasSubstr("rank 0, lane 1, step 0 (copy input[1] of rank 0 -> scratch[1] of rank 0)")));
}

TEST(Verifier, rejects_two_lanes_that_write_one_chunk) {
  Plan plan = two_lanes();
  steps_of(plan, 1, 1).back().destinations[0] = output(1, 0);
  steps_of(plan, 1, 1).back().sources = {scratch(0, 0), scratch(1, 0)};
  EXPECT_THAT(refusal(plan), AllOf(HasSubstr("races with rank 1, lane"), HasSubstr("for output[0] of rank 1")));
}

TEST(Verifier, rejects_a_race_with_a_peer) {
  Plan plan = one_shot(2);
  std::vector<Step>& steps = steps_of(plan, 0);
  std::swap(steps[0], steps[1]);  // signals before it copies
  EXPECT_THAT(refusal(plan),
              AllOf(HasSubstr("(reduce"), HasSubstr("scratch[0] of rank 0"),
                    HasSubstr("rank 0, lane 0, step 1 (copy input[0] of rank 0 -> scratch[0] of rank 0)")));
}

TEST(Verifier, rejects_a_scratch_chunk_overwritten_while_a_peer_may_read_it) {
  Plan plan = two_shot(2);
  std::vector<Step>& steps = steps_of(plan, 0);
  steps[find_step(steps, StepKind::kReduce)].destinations[1] = scratch(0, 1);  // which still holds the peer's part
  steps_of(plan, 1).back().sources[0] = scratch(0, 1);
  EXPECT_THAT(refusal(plan), AllOf(HasSubstr("races with"), HasSubstr("for scratch[1] of rank 0"),
                                   HasSubstr("no signal, packet or barrier orders the two")));
}

TEST(Verifier, rejects_scratch_reused_by_a_later_round_while_a_peer_may_read_it) {
  Plan plan = whole_plan(Collective::kBroadcast, "direct", 3);
  EXPECT_TRUE(verify(plan, Aliasing::kInPlace).ok());
  plan.pacing = Pacing::kByPlan;  // now no signal notifies the root that the others have read its slot
  EXPECT_THAT(refusal(plan), AllOf(HasSubstr("plan \"direct\" (broadcast, 3 ranks), rank "), HasSubstr("races with"),
                                   HasSubstr("2 rounds ")));
}

TEST(Verifier, rejects_reading_scratch_of_an_earlier_round) {
  Plan plan = one_shot(2);
  plan.scratch_chunks = 2;
  steps_of(plan, 1).back().sources[0] = scratch(0, 1);
  EXPECT_THAT(refusal(plan),
              HasSubstr("rank 1, lane 0, step 3 (reduce scratch[1] of rank 0, input[0] of rank 1 -> output[0] of "
                        "rank 1): reads scratch[1] of rank 0, which no step writes"));
}

TEST(Verifier, rejects_a_plan_that_claims_to_pace_itself_and_does_not) {
  Plan plan = whole_plan(Collective::kSendRecv, "packet", 2);
  plan.pacing = Pacing::kByPlan;
  EXPECT_THAT(refusal(plan), HasSubstr("races with"));
  Plan empty = whole_plan(Collective::kBroadcast, "packet", 2);
  empty.pacing = Pacing::kByPlan;
  EXPECT_THAT(refusal(empty), HasSubstr("races with"));
}

TEST(Verifier, rejects_a_barrier_that_lets_a_rank_leave_early) {
  Plan plan = whole_plan(Collective::kBarrier, "dissemination", 4);
  for (Rank rank = 0; rank < 4; ++rank) steps_of(plan, rank).resize(2);  // only the first of two steps
  plan.pacing = Pacing::kByExecutor;
  EXPECT_THAT(refusal(plan),
              HasSubstr("plan \"dissemination\" (barrier, 4 ranks), rank 0: leaves the barrier although nothing that "
                        "it waits for shows that rank 1 has arrived"));
}

TEST(Verifier, rejects_chunks_peers_ids_and_lanes_out_of_bounds) {
  Plan plan = one_shot(2);
  steps_of(plan, 1)[0].destinations[0].index = 1;
  EXPECT_THAT(refusal(plan), AllOf(HasSubstr("rank 1, lane 0, step 0 (copy"),
                                   HasSubstr("scratch[1] of rank 1 is out of bounds: scratch has 1 chunk")));
  plan = one_shot(2);
  steps_of(plan, 1)[0].sources[0].index = -1;
  EXPECT_THAT(refusal(plan), HasSubstr("input[-1] of rank 1 is out of bounds"));
  plan = one_shot(2);
  steps_of(plan, 0)[1].peer = 2;
  EXPECT_THAT(refusal(plan),
              HasSubstr("rank 0, lane 0, step 1 (signal 0 to rank 2): there is no rank 2, only ranks 0-1"));
  plan = one_shot(2);
  steps_of(plan, 0)[1].peer = -1;
  EXPECT_THAT(refusal(plan), HasSubstr("there is no rank -1"));
  plan = one_shot(2);
  steps_of(plan, 0)[1].id = 1;
  EXPECT_THAT(refusal(plan), HasSubstr("signal 1 is out of bounds: the plan has 1 for each pair"));
  plan = one_shot(2);
  plan.programs[1].lanes.resize(65);
  EXPECT_THAT(refusal(plan), HasSubstr("rank 1 has 65 lanes; there may be 64"));
  plan = one_shot(2);
  plan.programs[1].lanes.clear();
  EXPECT_THAT(refusal(plan), HasSubstr("rank 1 has no program"));
  plan = one_shot(2);
  plan.programs.pop_back();
  EXPECT_THAT(refusal(plan), HasSubstr("has programs for 1 of its ranks"));
  plan = one_shot(2);
  plan.scratch_chunks = 1 << 30;
  EXPECT_THAT(refusal(plan), HasSubstr("more than the"));
}

TEST(Verifier, rejects_shapes_with_incompatible_slices) {
  Plan plan = two_shot(4);
  plan.output_chunks = 1;
  EXPECT_THAT(refusal(plan), HasSubstr("4 input and 1 output chunks; all_reduce needs 1 and 1, or a multiple of both"));
  plan = whole_plan(Collective::kAllGather, "direct", 4);
  plan.output_chunks = 5;
  EXPECT_THAT(refusal(plan), HasSubstr("all_gather needs 1 and 4, or a multiple of both"));
}

TEST(Verifier, rejects_chunks_of_different_lengths_in_one_step) {
  Plan plan = two_shot(2);
  steps_of(plan, 0)[0].sources[0].index = 0;  // chunk 0 may be a line longer than chunk 1
  EXPECT_THAT(refusal(plan), AllOf(HasSubstr("(reduce"), HasSubstr("have different lengths")));
}

TEST(Verifier, rejects_a_write_to_input) {
  Plan plan = one_shot(2);
  steps_of(plan, 1).back().destinations[0] = input(1, 0);
  for (const Aliasing aliasing : {Aliasing::kOutOfPlace, Aliasing::kInPlace}) {
    EXPECT_THAT(refusal(plan, aliasing),
                AllOf(HasSubstr("rank 1, lane 0, step 3 (reduce"),
                      HasSubstr("input[0] of rank 1 must not be written: it is the caller's input")));
  }
}

TEST(Verifier, rejects_unreachable_memory_of_peers) {
  Plan plan = one_shot(2);
  steps_of(plan, 1).back().sources[0] = input(0, 0);
  EXPECT_THAT(refusal(plan), HasSubstr("input[0] of rank 0 cannot be reached from rank 1"));
  plan = one_shot(2);
  steps_of(plan, 1).back().destinations[0] = scratch(0, 0);
  EXPECT_THAT(refusal(plan), HasSubstr("scratch[0] of rank 0 cannot be written from rank 1"));
}

TEST(Verifier, rejects_an_access_to_a_peers_buffer_after_the_peer_may_have_returned) {
  Plan plan = whole_plan(Collective::kAllGather, "zero_copy", 2);
  std::vector<Step>& steps = steps_of(plan, 1);
  const std::size_t copy = find_step(steps, StepKind::kCopy, 1);
  std::swap(steps[copy], steps[copy + 1]);  // signals that it has read before it has
  EXPECT_THAT(refusal(plan), AllOf(HasSubstr("rank 1, lane 0, step 4 (copy input[0] of rank 0"),
                                   HasSubstr("may still access input[0] of rank 0 after rank 0 has returned")));
  plan = whole_plan(Collective::kAllReduce, "two_shot_zero_copy", 3);
  std::vector<Step>& last = steps_of(plan, 2);
  const std::size_t put = find_step(last, StepKind::kCopy);
  std::swap(last[put], last[put + 1]);  // signals rank 0, whose output is written, and rank 1, whose is not yet
  EXPECT_TRUE(verify(plan, Aliasing::kOutOfPlace).ok());
  std::swap(last[put + 1], last[put + 2]);
  EXPECT_THAT(refusal(plan), HasSubstr("may still access output[2] of rank 1 after rank 1 has returned"));
}

TEST(Verifier, rejects_an_access_to_a_peers_buffer_before_its_address_is_known) {
  Plan plan = whole_plan(Collective::kBroadcast, "zero_copy", 2);
  std::vector<Step>& steps = steps_of(plan, 1);
  std::swap(steps[0], steps[1]);
  EXPECT_THAT(refusal(plan),
              HasSubstr("accesses input[0] of rank 0 before its lane has waited for a signal of rank 0"));
}

TEST(Verifier, rejects_a_step_that_writes_to_two_peers) {
  Plan plan = whole_plan(Collective::kAllReduce, "two_shot_zero_copy", 3);
  std::vector<Step>& steps = steps_of(plan, 0);
  steps[find_step(steps, StepKind::kReduce)].destinations = {output(1, 0), output(2, 0)};
  EXPECT_THAT(refusal(plan), HasSubstr("a step may write to one peer's memory, not to several"));
}

TEST(Verifier, rejects_packets_read_twice_put_twice_never_put_or_never_read) {
  Plan plan = packet(3);
  steps_of(plan, 0).back().sources.push_back(packets(0, 1));
  EXPECT_THAT(refusal(plan),
              AllOf(HasSubstr("rank 0, lane 0, step 2 (reduce"), HasSubstr("packets[1] of rank 0 is read twice")));
  plan = packet(3);
  steps_of(plan, 1).insert(steps_of(plan, 1).begin(), steps_of(plan, 1)[0]);
  EXPECT_THAT(refusal(plan), AllOf(HasSubstr("rank 1, lane 0, step 1 (put packets"), HasSubstr("is put twice")));
  plan = packet(3);
  erase_step(steps_of(plan, 1), 0);
  EXPECT_THAT(refusal(plan),
              AllOf(HasSubstr("rank 2, lane 0, step 2 (reduce"), HasSubstr("nobody puts packets[1] of rank 2")));
  plan = packet(3);
  steps_of(plan, 2).back().sources[0] = input(2, 0);
  EXPECT_THAT(refusal(plan),
              AllOf(HasSubstr("rank 0, lane 0, step 1 (put packets"), HasSubstr("never reads packets[0] of rank 2")));
}

TEST(Verifier, rejects_packets_put_into_the_cells_of_another_rank) {
  Plan plan = packet(3);
  steps_of(plan, 1)[0].destinations[0].index = 0;
  EXPECT_THAT(refusal(plan), HasSubstr("packets[0] of rank 2 is for packets from rank 0, not from rank 1"));
}

TEST(Verifier, rejects_an_output_that_no_step_writes) {
  Plan plan = whole_plan(Collective::kAllGather, "direct", 3);
  std::vector<Step>& steps = steps_of(plan, 1);
  erase_step(steps, find_step(steps, StepKind::kCopy, 1));
  EXPECT_THAT(refusal(plan), HasSubstr("rank 1: no step writes output[1] of rank 1"));
  EXPECT_TRUE(verify(plan, Aliasing::kInPlace).ok());  // in place it is there already
}

TEST(Verifier, rejects_in_place_a_plan_that_is_correct_out_of_place) {
  PlanBuilder plan("early", {.collective = Collective::kAllReduce}, 2,
                   {.input_chunks = 1, .output_chunks = 1, .scratch_chunks = 2});
  plan.set_order(Order::kCanonical);
  for (const Rank rank : {0, 1}) {
    const Rank peer = 1 - rank;
    plan.on(rank).copy(input(rank, 0), {scratch(rank, 0), output(rank, 0)}).signal(peer).wait(peer);
    plan.on(rank).reduce({scratch(0, 0), scratch(1, 0)}, {output(rank, 0)});
    plan.on(rank).copy(input(rank, 0), {scratch(rank, 1)});  // the original input, which is overwritten if in place
    plan.on(rank).signal(peer, 1).wait(peer, 1).reduce(
        {rank == 0 ? input(0, 0) : scratch(0, 1), rank == 1 ? input(1, 0) : scratch(1, 1)}, {output(rank, 0)});
  }
  const Result<Plan> built = std::move(plan).build();
  ASSERT_TRUE(built.ok()) << built.status().to_string();
  EXPECT_TRUE(verify(*built, Aliasing::kOutOfPlace).ok());
  EXPECT_THAT(refusal(*built, Aliasing::kInPlace), HasSubstr("adds to input[0] of rank 0, a sum that was rounded"));
}

TEST(Verifier, rejects_a_sum_in_a_plan_that_declares_none) {
  Plan plan = one_shot(2);
  plan.order = Order::kNone;
  EXPECT_THAT(refusal(plan), HasSubstr("the plan declares no order of sums"));
}

TEST(Verifier, handles_terms_with_more_leaves_than_fit_in_memory) {
  PlanBuilder plan("doubling", {.collective = Collective::kAllReduce}, 1,
                   {.input_chunks = 1, .output_chunks = 1, .partial_chunks = 2});
  plan.set_order(Order::kCanonical);
  plan.on(0).reduce({input(0, 0), input(0, 0)}, {partials(0, 0)});
  for (int i = 0; i < 100; ++i) {
    plan.on(0).reduce({partials(0, i % 2), partials(0, i % 2)}, {partials(0, 1 - i % 2)});
  }
  plan.on(0).reduce({partials(0, 0), partials(0, 1)}, {output(0, 0)});
  EXPECT_THAT(refusal(*std::move(plan).build()), HasSubstr("holds the contribution of rank 0"));
}

}  // namespace
}  // namespace accord::plan
