// Simulations of the ranks that stand for others are compared with simulations of all ranks.
#include <gtest/gtest.h>

#include "plan/algorithms.hpp"
#include "sim/simulate.hpp"
#include "unit/sim/machines_for_tests.hpp"

namespace accord::sim {
namespace {

struct TwoRuns {
  Times folded, whole;
};

Machine machine_with(NetworkShape shape, int ranks_of_host, int hosts_per_switch) {
  Machine machine = testing::machine_of(ranks_of_host);
  machine.network.shape = shape;
  machine.network.hosts_per_switch = hosts_per_switch;
  machine.network.nics = 2;
  machine.network.oversubscription = 3;
  machine.network.global_bytes_per_second = 3e8;
  return machine;
}

TwoRuns both(Collective collective, std::string_view algorithm, std::size_t bytes, const Machine& machine, int hosts,
             Sharing sharing) {
  const Result<topology::Topology> topology = topology_of(machine, machine.host.ranks * hosts);
  EXPECT_TRUE(topology.ok()) << topology.status().message();
  const auto entry = plan::algorithm_by_name(collective, algorithm);
  EXPECT_TRUE(entry.ok());
  const auto run = [&](bool may_fold) {
    const Call call{{.collective = collective, .dtype = DType::kUInt8, .count = bytes}, std::size_t{1} << 16};
    const Result<Programs> programs = programs_of(**entry, call, machine, *topology, may_fold);
    EXPECT_TRUE(programs.ok()) << programs.status().message();
    Result<Times> times = simulate(*programs, machine, *topology, sharing);
    EXPECT_TRUE(times.ok()) << times.status().message();
    return *std::move(times);
  };
  return {run(true), run(false)};
}

void expect_equal(const TwoRuns& runs, double tolerance) {
  EXPECT_EQ(runs.whole.simulated_ranks, static_cast<int>(runs.whole.ranks.size()));
  EXPECT_NEAR(runs.folded.seconds, runs.whole.seconds, tolerance * runs.whole.seconds);
  ASSERT_EQ(runs.folded.ranks.size(), runs.whole.ranks.size());
  for (std::size_t rank = 0; rank < runs.whole.ranks.size(); ++rank) {
    EXPECT_NEAR(runs.folded.ranks[rank].end, runs.whole.ranks[rank].end, tolerance * runs.whole.seconds);
    EXPECT_NEAR(runs.folded.ranks[rank].working, runs.whole.ranks[rank].working, tolerance * runs.whole.seconds);
  }
  ASSERT_EQ(runs.folded.link_bytes.size(), runs.whole.link_bytes.size());
  for (std::size_t link = 0; link < runs.whole.link_bytes.size(); ++link)
    EXPECT_NEAR(runs.folded.link_bytes[link], runs.whole.link_bytes[link], 1e-9 * runs.whole.link_bytes[link]);
}

class Folding : public ::testing::TestWithParam<NetworkShape> {};

TEST_P(Folding, changes_no_time_and_no_bytes) {
  Machine machine = machine_with(GetParam(), 4, 2);
  machine.network.torus = {2, 4};
  for (const double memory : {0.0, 5e9}) {
    machine.host.memory_bytes_per_second = memory;
    for (const std::size_t bytes : {std::size_t{64}, std::size_t{1} << 18}) {
      const TwoRuns runs = both(Collective::kAllReduce, "hierarchical", bytes, machine, 8, Sharing::kFair);
      EXPECT_LT(runs.folded.simulated_ranks, 32);
      expect_equal(runs, 1e-9);
    }
    const TwoRuns barrier = both(Collective::kBarrier, "dissemination", 0, machine, 8, Sharing::kFair);
    EXPECT_LT(barrier.folded.simulated_ranks, 32);
    expect_equal(barrier, 1e-9);
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, Folding,
                         ::testing::Values(NetworkShape::kCrossbar, NetworkShape::kFatTree,
                                           NetworkShape::kRailOptimized, NetworkShape::kDragonfly,
                                           NetworkShape::kTorus),
                         [](const auto& each) { return std::string(to_string(each.param)); });

TEST(Folding, is_left_out_where_ranks_differ) {
  const Machine machine = machine_with(NetworkShape::kCrossbar, 2, 0);
  const TwoRuns tree = both(Collective::kBroadcast, "hierarchical", 1 << 16, machine, 6, Sharing::kFair);
  EXPECT_EQ(tree.folded.simulated_ranks, 12);
  expect_equal(tree, 0);
  // Chunks of unequal lengths.
  const TwoRuns uneven = both(Collective::kAllReduce, "hierarchical", 1000 * 64 + 64, machine, 4, Sharing::kFair);
  EXPECT_EQ(uneven.folded.simulated_ranks, 8);
}

}  // namespace
}  // namespace accord::sim
