// Sums that grow from step to step: in the declared order, and rounded only at their end.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "plan/verifier.hpp"
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

TEST(VerifierOfSums, accepts_subtrees_of_the_canonical_tree_and_rejects_a_chain) {
  const auto sum_of_three = [](std::vector<std::vector<int>> groups) {  // rank 0 adds in several steps
    PlanBuilder plan("nested", {.collective = Collective::kReduceScatter}, 3,
                     {.input_chunks = 3, .output_chunks = 1, .scratch_chunks = 3, .partial_chunks = 1});
    plan.set_order(Order::kCanonical);
    for (Rank rank = 0; rank < 3; ++rank) {
      for (int c = 0; c < 3; ++c) plan.on(rank).copy(input(rank, c), {scratch(rank, c)});
      for (Rank peer = 0; peer < 3; ++peer) {
        if (peer != rank) plan.on(rank).signal(peer);
      }
      for (Rank peer = 0; peer < 3; ++peer) {
        if (peer != rank) plan.on(rank).wait(peer);
      }
      const auto part = [&](int contributor) { return scratch(contributor, rank); };
      plan.on(rank)
          .reduce({part(groups[0][0]), part(groups[0][1])}, {partials(rank, 0)})
          .reduce(groups[1][0] < 0 ? std::vector<Chunk>{partials(rank, 0), part(groups[1][1])}
                                   : std::vector<Chunk>{part(groups[1][0]), partials(rank, 0)},
                  {output(rank, 0)});
    }
    return *std::move(plan).build();
  };
  EXPECT_TRUE(verify(sum_of_three({{0, 1}, {-1, 2}}), Aliasing::kOutOfPlace).ok());
  EXPECT_THAT(refusal(sum_of_three({{1, 2}, {0, -1}})),
              HasSubstr("(0 + (1 + 2)) where the canonical one is ((0 + 1) + 2)"));
}

TEST(VerifierOfSums, rejects_sums_with_intermediate_rounding) {
  Plan plan = whole_plan(Collective::kAllReduce, "recursive_doubling", 4);
  plan.scratch_chunks = 2;
  for (Rank rank = 0; rank < 4; ++rank) {  // sums over pairs in scratch, as if they were elements
    for (Step& step : steps_of(plan, rank)) {
      for (auto* chunks : {&step.sources, &step.destinations}) {
        for (Chunk& chunk : *chunks) {
          if (chunk.space == Space::kPartials) chunk = scratch(chunk.rank, 1);
        }
      }
    }
  }
  EXPECT_THAT(refusal(plan),
              AllOf(HasSubstr("plan \"recursive_doubling\" (all_reduce, 4 ranks), rank "),
                    HasSubstr("(reduce scratch[1] of rank "),
                    HasSubstr("a sum that was rounded when it was written; sums that are added to again must "
                              "be in partials")));
}

TEST(VerifierOfSums, rejects_a_rounded_sum_that_was_copied) {
  Plan plan = whole_plan(Collective::kAllReduce, "two_shot", 2);
  std::vector<Step>& steps = steps_of(plan, 1);
  steps.back() = {.kind = StepKind::kReduce, .destinations = {output(1, 0)}, .sources = {input(1, 0), scratch(0, 0)}};
  EXPECT_THAT(refusal(plan), HasSubstr("adds to scratch[0] of rank 0, a sum that was rounded"));
}

TEST(VerifierOfSums, rejects_a_partial_sum_overwritten_while_a_peer_may_read_it) {
  Plan plan = whole_plan(Collective::kAllReduce, "recursive_doubling", 8);
  steps_of(plan, 3).back().destinations.push_back(partials(3, 1));  // where rank 7 reads its sum over four
  EXPECT_THAT(refusal(plan), AllOf(HasSubstr("races with"), HasSubstr("for partials[1] of rank 3")));
}

TEST(VerifierOfSums, rejects_a_tree_whose_node_skips_a_child) {
  Plan plan = whole_plan(Collective::kReduce, "binomial", 6, 2);
  std::vector<Step>& steps = steps_of(plan, 4);
  erase_step(steps, find_step(steps, StepKind::kReduce));
  steps.insert(steps.end() - 1,
               {.kind = StepKind::kReduce, .destinations = {partials(4, 0)}, .sources = {input(4, 0), input(4, 0)}});
  EXPECT_THAT(refusal(plan), HasSubstr("output[0] of rank 2 lacks the contribution of rank 5"));
}

TEST(VerifierOfSums, rejects_halves_added_in_reverse_order) {
  Plan plan = whole_plan(Collective::kReduceScatter, "recursive_halving", 4);
  std::vector<Step>& steps = steps_of(plan, 2);
  std::swap(steps.back().sources[0], steps.back().sources[1]);
  EXPECT_THAT(refusal(plan), HasSubstr("((2 + 3) + (0 + 1)) where the canonical one is ((0 + 1) + (2 + 3))"));
}

TEST(VerifierOfSums, rejects_a_ring_declared_canonical) {
  Plan plan = whole_plan(Collective::kAllReduce, "ring", 3);
  plan.order = Order::kCanonical;
  EXPECT_THAT(refusal(plan), HasSubstr("((1 + 2) + 0) where the canonical one is ((0 + 1) + 2)"));
}

TEST(VerifierOfSums, rejects_ranks_that_add_a_chunk_in_different_orders) {
  Plan plan = whole_plan(Collective::kAllReduce, "one_shot", 3);
  plan.order = Order::kFixed;
  EXPECT_TRUE(verify(plan, Aliasing::kOutOfPlace).ok());
  std::swap(steps_of(plan, 2).back().sources[0], steps_of(plan, 2).back().sources[1]);
  EXPECT_THAT(refusal(plan),
              HasSubstr("output[0] of rank 2 adds up in the wrong order: ((1 + 0) + 2) where that of rank 0 "
                        "is ((0 + 1) + 2)"));
}

TEST(VerifierOfSums, rejects_a_ring_in_which_a_rank_adds_nothing_or_twice) {
  Plan plan = whole_plan(Collective::kReduceScatter, "ring", 4);
  std::vector<Step>& steps = steps_of(plan, 1);
  Step& reduce = steps[find_step(steps, StepKind::kReduce, 1)];
  reduce.sources[1] = reduce.sources[0];
  EXPECT_THAT(refusal(plan), HasSubstr("lacks the contribution of rank 1"));
}

}  // namespace
}  // namespace accord::plan
