// Every built-in plan with one step left out, or with two neighboring steps swapped. If the verifier accepts one, it
// must be harmless, which is shown by running it in every possible order. If the verifier rejects one with a swap, it
// must go wrong in some order.

#include <gtest/gtest.h>

#include <random>

#include "plan/verifier.hpp"
#include "unit/plan/interpreter.hpp"
#include "unit/plan/plans_for_tests.hpp"

namespace accord::plan {
namespace {

using testing::all_plans;
using testing::mix;

struct Mutant {
  Plan plan;
  std::string change;
};

std::vector<Mutant> deletions(const Plan& plan) {
  std::vector<Mutant> mutants;
  for (std::size_t rank = 0; rank < plan.programs.size(); ++rank) {
    const std::vector<Step>& steps = plan.programs[rank].lanes[0].steps;
    for (std::size_t i = 0; i < steps.size(); ++i) {
      Mutant mutant{plan, to_string(plan) + " without step " + std::to_string(i) + " of rank " + std::to_string(rank)};
      std::vector<Step>& left = mutant.plan.programs[rank].lanes[0].steps;
      left.erase(left.begin() + static_cast<std::ptrdiff_t>(i));
      mutants.push_back(std::move(mutant));
    }
  }
  return mutants;
}

std::vector<Mutant> swaps(const Plan& plan) {
  std::vector<Mutant> mutants;
  for (std::size_t rank = 0; rank < plan.programs.size(); ++rank) {
    const std::vector<Step>& steps = plan.programs[rank].lanes[0].steps;
    for (std::size_t i = 0; i + 1 < steps.size(); ++i) {
      Mutant mutant{plan, to_string(plan) + ", rank " + std::to_string(rank) + ": \"" + to_string(steps[i + 1]) +
                              "\" before \"" + to_string(steps[i]) + "\""};
      std::vector<Step>& swapped = mutant.plan.programs[rank].lanes[0].steps;
      std::swap(swapped[i], swapped[i + 1]);
      mutants.push_back(std::move(mutant));
    }
  }
  return mutants;
}

// Returns a request that runs in `rounds` rounds: two elements per chunk in slices of one, for example, are two
// rounds.
testing::MachineRequest rounds_of(const Plan& plan, std::size_t rounds) {
  const auto chunks = static_cast<std::size_t>(std::max(1, std::min(plan.input_chunks, plan.output_chunks)));
  return {.count = rounds * chunks, .element_bytes = 64, .slice = 1, .combine = mix};
}

class SmallGroups : public ::testing::TestWithParam<int> {};

INSTANTIATE_TEST_SUITE_P(Mutants, SmallGroups, ::testing::Values(2, 3, 4));

TEST_P(SmallGroups, no_step_of_any_plan_can_be_omitted) {
  for (const Plan& plan : all_plans(GetParam())) {
    for (const Mutant& mutant : deletions(plan)) {
      EXPECT_FALSE(verify(mutant.plan, Aliasing::kOutOfPlace).ok()) << mutant.change;
    }
  }
}

TEST(Mutants, of_two_ranks_are_accepted_exactly_if_every_order_of_three_rounds_is_correct) {
  int refused = 0;
  for (const Plan& plan : all_plans(2)) {
    ASSERT_EQ(testing::run_every_way(plan, rounds_of(plan, 3)), std::nullopt) << to_string(plan);
    for (const Mutant& mutant : swaps(plan)) {
      const Status verdict = verify(mutant.plan, Aliasing::kOutOfPlace);
      const auto problem = testing::run_every_way(mutant.plan, rounds_of(plan, 3));
      refused += !verdict.ok();
      EXPECT_EQ(verdict.ok(), !problem) << mutant.change << "\n"
                                        << verdict.to_string() << "\n"
                                        << problem.value_or("harmless");
    }
  }
  EXPECT_GT(refused, 10);
}

TEST(Mutants, of_three_ranks_are_accepted_exactly_if_every_order_of_a_round_is_correct) {
  for (const Plan& plan : all_plans(3)) {
    if (plan.size != 3) continue;
    ASSERT_EQ(testing::run_every_way(plan, rounds_of(plan, 1)), std::nullopt) << to_string(plan);
    for (const Mutant& mutant : swaps(plan)) {
      const Status verdict = verify(mutant.plan, Aliasing::kOutOfPlace);
      const auto problem = testing::run_every_way(mutant.plan, rounds_of(plan, 1));
      EXPECT_EQ(verdict.ok(), !problem) << mutant.change << "\n"
                                        << verdict.to_string() << "\n"
                                        << problem.value_or("harmless");
    }
  }
}

TEST(Mutants, of_four_ranks_that_are_accepted_are_correct_in_random_orders) {
  std::mt19937 random(5);
  int accepted = 0, refused = 0;
  for (const Plan& plan : all_plans(4)) {
    for (const Mutant& mutant : swaps(plan)) {
      const bool ok = verify(mutant.plan, Aliasing::kOutOfPlace).ok();
      ++(ok ? accepted : refused);
      for (int repeat = 0; repeat < 25 && ok; ++repeat) {
        ASSERT_EQ(testing::run_randomly(mutant.plan, rounds_of(plan, 4), random), std::nullopt) << mutant.change;
      }
    }
  }
  RecordProperty("accepted", accepted);
  RecordProperty("refused", refused);
  EXPECT_GT(accepted, 0);
  EXPECT_GT(refused, 0);
}

}  // namespace
}  // namespace accord::plan
