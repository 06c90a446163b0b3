#include <gtest/gtest.h>

#include <cstdint>

#include "simulation/campaign.hpp"
#include "simulation/run.hpp"
#include "simulation/scenario.hpp"

namespace accord::simulation {
namespace {

TEST(ProtocolSimulation, a_seed_repeats_its_run_exactly_whatever_ran_before) {
  for (const std::uint64_t seed : {1, 2, 3, 10}) {
    const Report first = run(scenario_of(seed));
    run(scenario_of(seed + 100));
    const Report again = run(scenario_of(seed));
    EXPECT_EQ(again.trace, first.trace) << "seed " << seed;
    EXPECT_EQ(again.counts, first.counts) << "seed " << seed;
  }
}

TEST(ProtocolSimulation, a_scenario_survives_the_way_through_json) {
  const Scenario scenario = scenario_of(7);
  const Result<Scenario> read = scenario_from_json(to_json(scenario));
  ASSERT_TRUE(read.ok()) << read.status().to_string();
  EXPECT_EQ(to_json(*read), to_json(scenario));
  EXPECT_EQ(scenario_from_json("{}").status().code(), StatusCode::kCorrupt);
}

/// A thousand seeds, so that parts of the program share them.
class ProtocolSeeds : public ::testing::TestWithParam<int> {};

TEST_P(ProtocolSeeds, do_not_violate_what_the_communicator_promises) {
  constexpr std::uint64_t kRuns = 1000;
  const Results results = run_seeds(1 + static_cast<std::uint64_t>(GetParam()) * kRuns, kRuns, {});
  EXPECT_EQ(results.runs, kRuns);
  for (const Failure& failure : results.failures)
    ADD_FAILURE() << "accord_protocol_simulation --seed " << failure.number << ": " << failure.violation;
  // Faults happen in every call, and the calls of others end as docs/failures.md says.
  for (const char* what :
       {"killed in create", "killed in all_reduce", "killed in shrink", "killed in split", "killed in window",
        "killed in grow", "paused in all_reduce", "all_reduce: peer_lost", "all_reduce: timeout", "all_reduce: aborted",
        "create: timeout", "shrink: ok", "join: ok", "a call that differs: mismatch", "split: peer_lost"})
    EXPECT_TRUE(results.counts.contains(what)) << what << " never happened";
}
INSTANTIATE_TEST_SUITE_P(Thousands, ProtocolSeeds, ::testing::Range(0, 2));

TEST(ProtocolSimulation, a_run_of_many_ranks_violates_nothing) {
  const Results results = run_seeds(1, 3, {.min_ranks = 24, .max_ranks = 32});
  for (const Failure& failure : results.failures)
    ADD_FAILURE() << "seed " << failure.number << ": " << failure.violation;
}

}  // namespace
}  // namespace accord::simulation
