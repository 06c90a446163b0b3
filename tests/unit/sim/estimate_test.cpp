// Estimates from the first rounds of calls are compared with simulations of all rounds.
#include "sim/estimate.hpp"

#include <gtest/gtest.h>

#include "plan/algorithms.hpp"
#include "sim/simulate.hpp"
#include "unit/sim/machines_for_tests.hpp"

namespace accord::sim {
namespace {

struct Case {
  Collective collective;
  std::string_view algorithm;
  int hosts = 1;
};

constexpr std::size_t kSlotBytes = 4096;

void expect_estimate(const Case& one, std::size_t bytes, double tolerance) {
  const Machine machine = testing::machine_of(4);
  const Result<topology::Topology> topology = topology_of(machine, 4 * one.hosts);
  ASSERT_TRUE(topology.ok());
  const auto algorithm = plan::algorithm_by_name(one.collective, one.algorithm);
  ASSERT_TRUE(algorithm.ok());
  const Call call{{.collective = one.collective, .dtype = DType::kUInt8, .count = bytes}, kSlotBytes};
  const Result<Programs> programs = programs_of(**algorithm, call, machine, *topology, false);
  ASSERT_TRUE(programs.ok()) << programs.status().message();
  for (const Sharing sharing : {Sharing::kFair, Sharing::kQueues}) {
    const Result<Times> all = simulate(*programs, machine, *topology, sharing);
    const Result<double> estimate = estimate_seconds(*programs, machine, *topology, sharing);
    ASSERT_TRUE(all.ok() && estimate.ok());
    EXPECT_NEAR(*estimate, all->seconds, tolerance * all->seconds)
        << one.algorithm << " over " << one.hosts << " hosts, " << programs->rounds << " rounds";
  }
}

TEST(Estimates, of_many_rounds_are_within_a_percent) {
  for (const Case& one : {Case{Collective::kAllReduce, "ring"}, Case{Collective::kAllReduce, "two_shot"},
                          Case{Collective::kBroadcast, "chain"}, Case{Collective::kBroadcast, "direct"},
                          Case{Collective::kAllReduce, "ring", 4}, Case{Collective::kAllReduce, "hierarchical", 4},
                          Case{Collective::kBroadcast, "chain", 4}, Case{Collective::kAllToAll, "direct", 2}})
    for (const std::size_t bytes : {std::size_t{1} << 21, std::size_t{3'000'019}}) expect_estimate(one, bytes, 0.01);
}

TEST(Estimates, of_few_rounds_are_simulations) {
  for (const std::size_t bytes : {std::size_t{8}, 20 * kSlotBytes})
    expect_estimate({Collective::kAllReduce, "ring"}, bytes, 0);
}

}  // namespace
}  // namespace accord::sim
