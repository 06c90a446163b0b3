#include "sim/critical_path.hpp"

#include <gtest/gtest.h>

#include <numeric>

#include "plan/algorithms.hpp"
#include "sim/simulate.hpp"
#include "unit/sim/machines_for_tests.hpp"

namespace accord::sim {
namespace {

struct Journaled {
  Times times;
  Journal journal;
};

Journaled journaled(Collective collective, std::string_view algorithm, std::size_t bytes, const Machine& machine,
                    int ranks, Sharing sharing = Sharing::kFair) {
  const Result<topology::Topology> topology = topology_of(machine, ranks);
  EXPECT_TRUE(topology.ok()) << topology.status().message();
  const Call call{{.collective = collective, .dtype = DType::kUInt8, .count = bytes}, std::size_t{1} << 16, 2};
  const Result<Programs> programs =
      programs_of(**plan::algorithm_by_name(collective, algorithm), call, machine, *topology, true);
  EXPECT_TRUE(programs.ok()) << programs.status().message();
  Journaled result;
  Result<Times> times = simulate(*programs, machine, *topology, sharing, &result.journal);
  EXPECT_TRUE(times.ok()) << times.status().message();
  result.times = *std::move(times);
  return result;
}

double sum_of(const CriticalPath& path) { return std::accumulate(path.seconds.begin(), path.seconds.end(), 0.0); }

TEST(CriticalPaths, take_the_whole_time_in_every_algorithm) {
  for (const plan::AlgorithmEntry& entry : plan::algorithms()) {
    if (entry.multicasts || entry.buffers != plan::Buffers::kAnywhere || entry.collective == Collective::kSendRecv)
      continue;
    for (const int hosts : {1, 2}) {
      if (hosts > 1 && !entry.spans_hosts) continue;
      Machine machine = testing::machine_of(4);
      machine.host.memory_bytes_per_second = 5e9;
      machine.host.cores = 3;
      machine.host.core_switch_seconds = 2e-6;
      for (const std::size_t bytes : {8, 5000, 300000}) {
        const std::size_t given = entry.collective == Collective::kBarrier ? 0 : bytes;
        const Journaled run = journaled(entry.collective, entry.name, given, machine, 4 * hosts);
        const CriticalPath path = critical_path(run.journal);
        EXPECT_NEAR(sum_of(path), run.times.seconds, 1e-9 * run.times.seconds) << entry.name << " " << given;
        for (const PathStep& step : path.steps) EXPECT_GE(step.waited, -1e-15) << entry.name;
        for (const double part : path.seconds) EXPECT_GE(part, -1e-15) << entry.name;
      }
    }
  }
}

// One rank sends a byte to another host: the call, a message of one byte, and the receiver's wait.
TEST(CriticalPaths, name_where_the_time_of_a_message_goes) {
  const Machine machine = testing::machine_of(1);
  Programs programs;
  programs.programs = {{{{.kind = OpKind::kSend,
                          .is_remote = true,
                          .peer = 1,
                          .event = 0,
                          .channel = 0,
                          .length = 1000,
                          .seconds = 5e-7,
                          .bytes_per_element = 1}}},
                       {{{.kind = OpKind::kWait, .is_remote = true, .event = 0, .seconds = 3e-7}}}};
  programs.ranks = 2;
  programs.events = 1;
  programs.channels = {{0, 1}};
  programs.slice = 1000;
  Journal journal;
  const Result<Times> times = simulate(programs, machine, *topology_of(machine, 2), Sharing::kFair, &journal);
  ASSERT_TRUE(times.ok()) << times.status().message();
  const CriticalPath path = critical_path(journal);
  ASSERT_EQ(path.steps.size(), 2u);
  EXPECT_EQ(journal.entries[path.steps[0].entry].rank, 0);
  EXPECT_EQ(journal.entries[path.steps[1].entry].rank, 1);
  EXPECT_DOUBLE_EQ(path.of(PathPart::kCalls), 1e-6);
  EXPECT_DOUBLE_EQ(path.of(PathPart::kSends), 5e-7);
  EXPECT_NEAR(path.of(PathPart::kNetwork), 1e-6 + 1e-5, 1e-12);  // 1,000 bytes at 1 GB/s, and the latency
  EXPECT_NEAR(path.of(PathPart::kSteps), 3e-7, 1e-15);
  ASSERT_EQ(journal.transfers.size(), 1u);
  EXPECT_NEAR(journal.transfers[0].end - journal.transfers[0].begin, 1e-6, 1e-12);
  EXPECT_EQ(journal.routes[journal.transfers[0].route].size(), 2u);  // both NICs
}

TEST(CriticalPaths, do_not_depend_on_whether_ranks_are_folded) {
  const Machine machine = testing::machine_of(2);
  const Journaled run = journaled(Collective::kAllReduce, "hierarchical", 1 << 18, machine, 16, Sharing::kQueues);
  EXPECT_LT(run.times.simulated_ranks, 16);
  EXPECT_NEAR(sum_of(critical_path(run.journal)), run.times.seconds, 1e-9 * run.times.seconds);
}

}  // namespace
}  // namespace accord::sim
