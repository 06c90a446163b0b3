#include "plan/algorithms.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <random>
#include <set>

#include "plan/verifier.hpp"
#include "sanitized.hpp"
#include "unit/plan/interpreter.hpp"
#include "unit/plan/plans_for_tests.hpp"
#include "unit/plan/thresholds.hpp"

namespace accord::plan {
namespace {

using accord::testing::kSanitized;
using testing::add;
using testing::all_plans;
using testing::has_root;
using ::testing::HasSubstr;
using testing::is_in_place_possible;
using ::testing::IsSupersetOf;
using testing::mix;
using testing::whole_plan;

std::vector<Aliasing> aliasings(const Plan& plan) {
  if (!is_in_place_possible(plan.collective) || plan.buffers == Buffers::kInWindowsApart)
    return {Aliasing::kOutOfPlace};
  return {Aliasing::kOutOfPlace, Aliasing::kInPlace};
}

class EverySize : public ::testing::TestWithParam<int> {};

const std::vector<int> kSizes = kSanitized
                                    ? std::vector<int>{1, 2, 3, 4, 5, 8}
                                    : std::vector<int>{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 64};

INSTANTIATE_TEST_SUITE_P(Algorithms, EverySize, ::testing::ValuesIn(kSizes));

/// For checks that take long in large groups and work in small ones as well.
class SmallSizes : public EverySize {};

INSTANTIATE_TEST_SUITE_P(Algorithms, SmallSizes, ::testing::Range(1, kSanitized ? 6 : 10));

TEST_P(EverySize, every_algorithm_is_verified) {
  for (const Plan& plan : all_plans(GetParam())) {
    const Status status = verify_for_calls(plan);
    EXPECT_TRUE(status.ok()) << status.to_string();
  }
}

TEST(Algorithms, out_of_place_algorithms_would_race_in_place) {
  int found = 0;
  for (const int size : {2, 3, 5})
    for (const Plan& plan : all_plans(size)) {
      if (plan.buffers != Buffers::kInWindowsApart) continue;
      ++found;
      EXPECT_THAT(testing::refusal(plan, Aliasing::kInPlace), HasSubstr("races with")) << to_string(plan);
    }
  EXPECT_EQ(found, 6);
}

TEST_P(EverySize, every_algorithm_matches_the_reference_for_counts_around_the_number_of_ranks) {
  const auto n = static_cast<std::size_t>(GetParam());
  std::mt19937 random(7);
  std::set<std::size_t> counts = {0, 1, n - 1, n, n + 1};
  if (n <= 17) counts.insert({13, 97, 8 * n, 8 * n + 1, 257});
  for (const Plan& plan : all_plans(GetParam())) {
    for (const Aliasing aliasing : aliasings(plan)) {
      for (const std::size_t count : counts) {
        for (const std::size_t slice : {count / 16 + 1 + random() % 5, count + 1}) {  // up to 16 rounds; one round
          if (n > 17 && slice <= count) continue;
          const auto combine = random() % 2 == 0 ? add : mix;
          const auto problem = testing::run_randomly(
              plan, {.aliasing = aliasing, .count = count, .slice = slice, .combine = combine}, random);
          ASSERT_EQ(problem, std::nullopt) << to_string(plan) << ", count " << count << ", slice " << slice
                                           << ", in place " << (aliasing == Aliasing::kInPlace);
        }
      }
    }
  }
}

TEST_P(SmallSizes, every_algorithm_matches_the_reference_around_the_thresholds_of_the_default_table) {
  testing::run_around_thresholds(GetParam(), 1, std::size_t{8} << 10);  // tests/slow/plan has the rest
}

TEST(Thresholds, include_those_of_the_default_table) {
  EXPECT_THAT(testing::default_thresholds(Collective::kAllReduce), IsSupersetOf({128U, 1024U, 8192U}));
  EXPECT_THAT(testing::default_thresholds(Collective::kAllGather), IsSupersetOf({2048U, 8U << 20}));
  EXPECT_TRUE(testing::default_thresholds(Collective::kBarrier).empty());
}

TEST_P(EverySize, a_rank_that_builds_only_its_own_program_gets_the_same_program_and_shape) {
  const int size = GetParam();
  for (const AlgorithmEntry& entry : algorithms()) {
    const Rank root = has_root(entry.collective) ? size - 1 : 0;
    const Plan whole = whole_plan(entry, size, root);
    for (Rank rank = 0; rank < whole.size; ++rank) {
      const Request request{.collective = entry.collective, .root = root, .only_rank = rank};
      const Result<Plan> own = entry.make(topology::Topology::uniform(size), request);
      ASSERT_TRUE(own.ok()) << own.status().to_string();
      Plan expected = whole;
      for (Rank other = 0; other < whole.size; ++other) {
        if (other != rank) expected.programs[static_cast<std::size_t>(other)] = {};
      }
      EXPECT_EQ(*own, expected) << to_string(whole) << " rank " << rank;
      EXPECT_EQ(needs_mapped_peers(*own), needs_mapped_peers(whole));
    }
  }
}

TEST(Algorithms, build_the_programs_of_several_ranks_at_once) {
  const auto entry = algorithm_by_name(Collective::kBarrier, "dissemination");
  ASSERT_TRUE(entry.ok());
  const Plan whole = whole_plan(**entry, 7, 0);
  const auto topology = topology::Topology::uniform(7);
  const Result<Plan> part =
      make_plan(**entry, topology, {.collective = Collective::kBarrier, .only_rank = 2, .rank_count = 3});
  ASSERT_TRUE(part.ok()) << part.status().to_string();
  for (std::size_t rank = 0; rank < 7; ++rank) {
    const bool is_requested = rank >= 2 && rank < 5;
    EXPECT_EQ(part->programs[rank], is_requested ? whole.programs[rank] : Program());
  }
  const Result<Plan> beyond =
      make_plan(**entry, topology, {.collective = Collective::kBarrier, .only_rank = 5, .rank_count = 3});
  EXPECT_EQ(beyond.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(beyond.status().message(), HasSubstr("there is no rank 7, only ranks 0-6"));
}

TEST(Algorithms, have_a_limit_of_chunks_for_whole_plans_only) {
  const auto entry = algorithm_by_name(Collective::kAllGather, "direct");
  ASSERT_TRUE(entry.ok());
  const auto topology = topology::Topology::uniform(3000);
  EXPECT_THAT(make_plan(**entry, topology, {.collective = Collective::kAllGather}).status().message(),
              HasSubstr("on each of 3000 ranks are more than"));
  EXPECT_TRUE(make_plan(**entry, topology, {.collective = Collective::kAllGather, .only_rank = 9}).ok());
}

TEST_P(SmallSizes, one_slice_may_be_many_rounds_that_overlap) {
  std::mt19937 random(11);
  for (const Plan& plan : all_plans(GetParam())) {
    for (int repeat = 0; repeat < 20; ++repeat) {
      const auto problem =
          testing::run_randomly(plan, {.count = 100 + random() % 50, .slice = 5, .combine = mix}, random);
      ASSERT_EQ(problem, std::nullopt) << to_string(plan);
    }
  }
}

TEST(Algorithms, every_rank_can_be_the_root) {
  std::mt19937 random(3);
  for (const AlgorithmEntry& entry : algorithms()) {
    if (!has_root(entry.collective)) continue;
    for (Rank root = 0; root < 5; ++root) {
      const Plan plan = whole_plan(entry, 5, root);
      EXPECT_TRUE(verify(plan, Aliasing::kInPlace).ok());
      EXPECT_EQ(testing::run_randomly(plan, {.count = 50, .slice = 7, .combine = add}, random), std::nullopt);
    }
  }
}

TEST(Algorithms, two_shot_on_64_ranks_is_verified_within_two_seconds) {
  const Plan plan = whole_plan(Collective::kAllReduce, "two_shot", 64);
  const auto start = std::chrono::steady_clock::now();
  EXPECT_TRUE(verify(plan, Aliasing::kInPlace).ok());
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  RecordProperty("seconds", std::to_string(took.count()));
  EXPECT_LT(took.count(), 20.0);  // ten times the goal, as this machine may be busy or the build sanitized
}

TEST(Algorithms, an_invalid_root_is_rejected) {
  const auto entry = algorithm_by_name(Collective::kBroadcast, "direct");
  ASSERT_TRUE(entry.ok());
  const auto plan = (*entry)->make(topology::Topology::uniform(4), {.collective = Collective::kBroadcast, .root = 4});
  ASSERT_FALSE(plan.ok());
  EXPECT_EQ(plan.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(plan.status().message(), HasSubstr("root 4 is not one of the ranks 0-3"));
}

TEST(Algorithms, a_rank_outside_the_group_has_no_program) {
  const auto entry = algorithm_by_name(Collective::kAllReduce, "packet");
  ASSERT_TRUE(entry.ok());
  const auto plan =
      (*entry)->make(topology::Topology::uniform(4), {.collective = Collective::kAllReduce, .only_rank = 4});
  ASSERT_FALSE(plan.ok());
  EXPECT_THAT(plan.status().message(), HasSubstr("there is no rank 4, only ranks 0-3"));
}

TEST(Algorithms, every_collective_has_an_algorithm_and_names_are_unique) {
  std::set<std::pair<Collective, std::string_view>> names;
  std::set<Collective> collectives;
  for (const AlgorithmEntry& entry : algorithms()) {
    EXPECT_TRUE(names.insert({entry.collective, entry.name}).second) << entry.name;
    collectives.insert(entry.collective);
    EXPECT_EQ(whole_plan(entry, 3).name, entry.name);
    EXPECT_EQ(whole_plan(entry, 3).order, entry.order) << entry.name;
    EXPECT_EQ(whole_plan(entry, 3).buffers, entry.buffers) << entry.name;
    EXPECT_EQ(whole_plan(entry, 3).multicast_chunks > 0, entry.multicasts) << entry.name;
    for (const std::string_view fact :
         {entry.description.steps, entry.description.bytes, entry.description.selected, entry.description.source})
      EXPECT_FALSE(fact.empty()) << entry.name;
  }
  EXPECT_EQ(collectives.size(), static_cast<std::size_t>(kCollectiveCount));
}

TEST(Algorithms, an_unknown_name_suggests_the_nearest_of_its_collective) {
  const auto entry = algorithm_by_name(Collective::kAllReduce, "twoshot");
  ASSERT_FALSE(entry.ok());
  EXPECT_EQ(entry.status().code(), StatusCode::kNotFound);
  EXPECT_THAT(entry.status().message(), HasSubstr("two_shot"));
  EXPECT_THAT(entry.status().message(), HasSubstr("all_reduce"));
}

}  // namespace
}  // namespace accord::plan
