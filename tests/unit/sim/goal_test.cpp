#include "sim/goal.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "plan/algorithms.hpp"
#include "sim/simulate.hpp"
#include "unit/sim/machines_for_tests.hpp"

namespace accord::sim {
namespace {

// Hosts of one rank with LogGOPSim's defaults: L = 2500 ns, o = 1500 ns, G = 6 ns.
Machine loggp_machine() {
  Machine machine = testing::machine_of(1);
  machine.network.nic_bytes_per_second = 1e9 / 6;
  machine.network.message_seconds = 1.5e-6;
  machine.network.latency_seconds = 2.5e-6;
  return machine;
}

Result<Times> replay(std::string_view text, const Machine& machine, Journal* journal = nullptr) {
  ACCORD_ASSIGN_OR_RETURN(const Goal goal, parse_goal(text));
  ACCORD_ASSIGN_OR_RETURN(const topology::Topology topology, topology_of(machine, goal.ranks));
  ACCORD_ASSIGN_OR_RETURN(const Schedule schedule, schedule_of(goal, machine, topology));
  return simulate(schedule, machine, topology, Sharing::kQueues, journal);
}

double nanoseconds_of(std::string_view text) {
  const Result<Times> times = replay(text, loggp_machine());
  EXPECT_TRUE(times.ok()) << times.status().message();
  return times.ok() ? times->seconds * 1e9 : 0;
}

TEST(Goals, compute_and_send_in_the_order_that_they_require) {
  EXPECT_NEAR(nanoseconds_of("num_ranks 2\n"
                             "rank 0 {\n"
                             "work: calc 500 cpu 0 nic 0   // nanoseconds\n"
                             "data: send 1000b to 1 tag 7\n"
                             "/* two\n lines */ data requires work\n"
                             "}\n"
                             "rank 1 { \n"
                             "recv 1000b from 0 tag 7\n"
                             "}\n"),
              500 + 1500 + 1000 * 6 + 2500 + 1500, 1e-6);
}

TEST(Goals, run_streams_of_a_rank_side_by_side) {
  EXPECT_NEAR(nanoseconds_of("num_ranks 1\nrank 0 {\ncalc 500\ncalc 400\ncalc 700 cpu 1\n}"), 900, 1e-6);
  EXPECT_NEAR(nanoseconds_of("num_ranks 1\nrank 0 {\na: calc 500\nb: calc 400 cpu 1\nb requires a\n}"), 900, 1e-6);
  EXPECT_NEAR(nanoseconds_of("num_ranks 1\nrank 0 {\na: calc 500\nb: calc 400 cpu 1\nb irequires a\n}"), 500, 1e-6);
}

TEST(Goals, match_messages_of_a_tag_in_their_order) {
  Journal journal;
  const Result<Times> times = replay(
      "num_ranks 2\n"
      "rank 0 {\na: send 10b to 1 tag 3\nb: send 20b to 1 tag 4\nc: send 30b to 1 tag 3\nb requires a\nc requires "
      "b\n}\n"
      "rank 1 {\na: recv 20b from 0 tag 4\nb: recv 10b from 0 tag 3\nc: recv 40b from 0 tag 3\n}\n",
      loggp_machine(), &journal);
  ASSERT_TRUE(times.ok()) << times.status().message();
  EXPECT_EQ(
      replay("num_ranks 2\nrank 0 {\nsend 10b to 1\nsend 30b to 1\n}\nrank 1 {\nrecv 30b from 0\nrecv 10b from 0\n}",
             loggp_machine())
          .status()
          .message(),
      "rank 1 receives 10 bytes from rank 0, which sends 30");
}

// Times of LogGOPSim (L = 2500, o = 1500, g = 0, G = 6, S = 10^8) for patterns of its schedgen with 64 ranks and 1024
// bytes. It counts the first byte of a message as part of L, so that each message takes G less.
TEST(Goals, take_as_long_as_in_LogGOPSim) {
  constexpr int kRanks = 64;
  std::string dissemination = fmt::format("num_ranks {}\n", kRanks), tree = dissemination;
  for (int rank = 0; rank < kRanks; ++rank) {
    dissemination += fmt::format("rank {} {{\n", rank);
    for (int step = 1, number = 1; step < kRanks; step *= 2, ++number) {
      dissemination += fmt::format("s{}: send 1024b to {} tag 0\n", number, (rank + step) % kRanks);
      if (number > 1) dissemination += fmt::format("s{} requires r{}\n", number, number - 1);
      dissemination += fmt::format("r{}: recv 1024b from {} tag 0\n", number, (rank + kRanks - step) % kRanks);
    }
    dissemination += "}\n";
    // A binomial tree: rank r receives from r without its highest bit.
    tree += fmt::format("rank {} {{\n", rank);
    int bit = 1;
    while (bit <= rank) bit *= 2;
    if (rank > 0) tree += fmt::format("r: recv 1024b from {} tag 0\n", rank - bit / 2);
    for (int number = 0; rank + bit < kRanks; bit *= 2, ++number) {
      tree += fmt::format("s{}: send 1024b to {} tag 0\n", number, rank + bit);
      if (rank > 0) tree += fmt::format("s{} requires r\n", number);
    }
    tree += "}\n";
  }
  EXPECT_NEAR(nanoseconds_of(dissemination), 69828, 6 * 6 + 1e-6);
  EXPECT_NEAR(nanoseconds_of(tree), 69828, 6 * 6 + 1e-6);
}

TEST(Goals, refuse_what_has_no_meaning_and_name_the_line) {
  const auto error = [](std::string_view text) {
    return std::string(replay(text, loggp_machine()).status().message());
  };
  const std::string begin = "num_ranks 2\nrank 0 {\n";
  EXPECT_EQ(error(""), "line 1: \"num_ranks\" is missing");
  EXPECT_EQ(error("rank 0 {"), "line 1: \"num_ranks\" comes first");
  EXPECT_EQ(error("num_ranks 0"), "line 1: there must be at least one rank");
  EXPECT_EQ(error("num_ranks 9999999"), "line 1: the number of ranks is at most 1048576, not 9999999");
  EXPECT_EQ(error("num_ranks 2\nnum_ranks 2"), "line 2: \"num_ranks\" is there twice");
  EXPECT_EQ(error("num_ranks 2\nrank 2 {"), "line 2: the rank is at most 1, not 2");
  EXPECT_EQ(error(begin + "}\nrank 0 {"), "line 4: rank 0 is there twice");
  EXPECT_EQ(error(begin + "a: calc 5"), "line 3: rank 0 has no \"}\"");
  EXPECT_EQ(error(begin + "a: calc"), "line 3: the end of the line instead of nanoseconds");
  EXPECT_EQ(error(begin + "a: calc -5"), "line 3: \"-\" instead of nanoseconds");
  EXPECT_EQ(error(begin + "a: calc 99999999999999999999"), "line 3: \"99999999999999999999\" instead of nanoseconds");
  EXPECT_EQ(error(begin + "a: calc 5 tag 3"), "line 3: \"tag\" instead of \"tag\", \"cpu\" or \"nic\"");
  EXPECT_EQ(error(begin + "a: calc 5 b"), "line 3: \"b\" instead of \"tag\", \"cpu\" or \"nic\"");
  EXPECT_EQ(error(begin + "a: calc 5 cpu 64"), "line 3: the cpu is at most 63, not 64");
  EXPECT_EQ(error(begin + "a: calc 5\na: calc 5"), "line 4: label \"a\" is used twice");
  EXPECT_EQ(error(begin + "a: calc 5\n\na requires b\n}"), "line 5: rank 0 has no label \"b\"");
  EXPECT_EQ(error(begin + "a: calc 5\na wants b\n}"), "line 4: \"wants\" instead of \":\"");
  EXPECT_EQ(error(begin + "send 5 to 1"), "line 3: \"to\" instead of \"b\"");
  EXPECT_EQ(error(begin + "send 5b from 1"), "line 3: \"from\" instead of \"to\"");
  EXPECT_EQ(error(begin + "recv 5b from -1"), "line 3: receives from any rank are not supported");
  EXPECT_EQ(error(begin + "recv 5b from 1 tag -1"), "line 3: receives of any tag are not supported");
  EXPECT_EQ(error(begin + "/* no end"), "line 3: rank 0 has no \"}\"");
  EXPECT_EQ(error(begin + "send 5b to 1 tag 9\n}"), "a send of rank 0 with tag 9 has no receive of rank 1");
  EXPECT_EQ(error(begin + "recv 5b from 1 tag 9\n}"), "a receive of rank 0 with tag 9 has no send of rank 1");
  EXPECT_EQ(error(begin + "a: calc 5\nb: calc 5\na requires b\nb requires a\n}"), "rank 0 waits forever in task 0");
}

TEST(Goals, are_read_as_they_were_written) {
  const std::string text =
      "num_ranks 2\n"
      "\nrank 0 {\nl0: calc 5\nl1: send 64b to 1 tag 7 cpu 2\nl1 requires l0\n}\n"
      "\nrank 1 {\nl2: recv 64b from 0 tag 7\nl3: calc 9 cpu 1\nl3 irequires l2\n}\n";
  const Result<Goal> goal = parse_goal(text);
  ASSERT_TRUE(goal.ok()) << goal.status().message();
  EXPECT_EQ(goal_text(*goal), text);
}

// The exported tasks leave out only what the machine's file counts beside copies and messages within a host.
TEST(Goals, of_a_call_take_about_as_long_as_the_call) {
  const Machine machine = testing::machine_of(4);
  for (const auto& [collective, name, bytes] : {std::tuple{Collective::kAllReduce, "hierarchical", 1 << 20},
                                                {Collective::kAllReduce, "two_shot", 1 << 16},
                                                {Collective::kAllGather, "direct", 1 << 14},
                                                {Collective::kAllToAll, "direct", 1 << 12},
                                                {Collective::kBarrier, "dissemination", 0},
                                                {Collective::kAllReduce, "packet", 512}}) {
    const auto entry = plan::algorithm_by_name(collective, name);
    ASSERT_TRUE(entry.ok());
    const int ranks = (*entry)->spans_hosts ? 16 : 4;
    const Result<topology::Topology> topology = topology_of(machine, ranks);
    const Call call{{.collective = collective, .dtype = DType::kUInt8, .count = static_cast<std::uint64_t>(bytes)},
                    std::size_t{1} << 16};
    const Result<Programs> programs = programs_of(**entry, call, machine, *topology, false);
    ASSERT_TRUE(programs.ok()) << programs.status().message();
    const Result<Goal> goal = goal_of(*programs);
    ASSERT_TRUE(goal.ok()) << goal.status().message();
    const Result<Times> times = replay(goal_text(*goal), machine);
    ASSERT_TRUE(times.ok()) << times.status().message();
    const Result<Times> expected = simulate(*programs, machine, *topology, Sharing::kQueues);
    EXPECT_NEAR(times->seconds, expected->seconds, 0.2 * expected->seconds) << name;
    EXPECT_EQ(times->link_bytes, expected->link_bytes) << name;
  }
}

}  // namespace
}  // namespace accord::sim
