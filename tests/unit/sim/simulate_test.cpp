// The expected times are sums of the costs of the steps, written out.
#include "sim/simulate.hpp"

#include <gtest/gtest.h>

#include "plan/algorithms.hpp"
#include "plan/builder.hpp"
#include "unit/plan/plans_for_tests.hpp"
#include "unit/sim/machines_for_tests.hpp"

namespace accord::sim {
namespace {

constexpr std::size_t kSlot = std::size_t{1} << 20;
constexpr double kCall = 1e-6, kHop = 1e-7, kStep = 1e-8, kTouch = 1e-10, kExchange = 2e-10;
constexpr double kMessage = 5e-7, kLatency = 1e-5, kByte = 1e-9;

exec::RequestRecord request_of(Collective collective, std::size_t bytes) {
  return {.collective = collective, .dtype = DType::kUInt8, .count = bytes};
}

Times run(const plan::Plan& plan, std::size_t bytes, const Machine& machine, std::uint64_t calls = 1) {
  const Result<topology::Topology> topology = topology_of(machine, plan.size);
  EXPECT_TRUE(topology.ok());
  const Result<Programs> programs =
      programs_of(plan, {request_of(plan.collective, bytes), kSlot, calls}, machine, *topology);
  EXPECT_TRUE(programs.ok()) << programs.status().message();
  Result<Times> times = simulate(*programs, machine, *topology);
  EXPECT_TRUE(times.ok()) << times.status().message();
  return *std::move(times);
}

// Rank 0 copies to the scratch of rank 1, which copies to its output.
plan::Plan message() {
  plan::PlanBuilder builder("message", {.collective = Collective::kSendRecv}, 2,
                            {.input_chunks = 1, .output_chunks = 1, .scratch_chunks = 1});
  builder.on(0).copy(plan::input(0, 0), {plan::scratch(1, 0)}).signal(1);
  builder.on(1).wait(0).copy(plan::scratch(1, 0), {plan::output(1, 0)});
  Result<plan::Plan> plan = std::move(builder).build();
  EXPECT_TRUE(plan.ok()) << plan.status().message();
  return *std::move(plan);
}

TEST(Simulations, of_a_message_within_a_host_take_its_steps_and_bytes) {
  constexpr double kBytes = 65536;
  const Times times = run(message(), 65536, testing::machine_of(2));
  const double first = kCall + 2 * kStep + kBytes * (2 * kTouch + kExchange);
  EXPECT_NEAR(times.ranks[0].end, first, 1e-12);
  EXPECT_NEAR(times.seconds, first + kHop + 2 * kStep + kBytes * 2 * kTouch, 1e-12);
  EXPECT_NEAR(times.ranks[1].waiting, first + kHop - kCall, 1e-12);
  EXPECT_NEAR(times.ranks[1].working, 2 * kStep + kBytes * 2 * kTouch, 1e-12);
  EXPECT_EQ(times.operations, 4U);
}

TEST(Simulations, of_sums_over_packets_take_the_time_of_the_sums_in_addition) {
  constexpr double kBytes = 4096, kSum = 1 / 3e9;
  for (const auto& [collective, has_sums] :
       {std::pair(Collective::kAllReduce, true), {Collective::kAllGather, false}}) {
    const auto algorithm = plan::algorithm_by_name(collective, "packet");
    ASSERT_TRUE(algorithm.ok());
    Machine machine = testing::machine_of(2);
    const Result<topology::Topology> topology = topology_of(machine, 2);
    const auto seconds_of = [&] {
      return run(*plan::make_plan(**algorithm, *topology, {.collective = collective}), 4096, machine).seconds;
    };
    const double before = seconds_of();
    machine.host.times.packet_sums = RateCurve(1 / kSum);
    EXPECT_NEAR(seconds_of() - before, has_sums ? kBytes * kSum : 0, 1e-12);
  }
}

TEST(Simulations, of_a_message_between_hosts_take_its_bytes_over_the_network) {
  constexpr double kBytes = 65536;
  const Times times = run(message(), 65536, testing::machine_of(1));
  const double arrival = kCall + kStep + kMessage + kBytes * kTouch + kBytes * kByte + kLatency;  // data and signal
  EXPECT_NEAR(times.seconds, arrival + kStep + kMessage + kStep + kBytes * 2 * kTouch, 1e-12);
  EXPECT_NEAR(times.ranks[0].end, kCall + 2 * kStep + kMessage + kBytes * kTouch, 1e-12);
  EXPECT_EQ(times.link_bytes, (std::vector<double>{kBytes, 0, 0, kBytes}));
}

TEST(Simulations, of_several_calls_begin_each_call_when_the_rank_has_ended_the_one_before) {
  constexpr double kBytes = 65536;
  const Machine machine = testing::machine_of(2);
  const Times times = run(message(), 65536, machine, 3);
  // The sender is the slower one. It may be two calls ahead, so it never waits.
  const double sends = kCall + 2 * kStep + kBytes * (2 * kTouch + kExchange);
  const double gate = 64 * kExchange / 2;  // the third call looks whether the other rank has ended the first
  EXPECT_NEAR(times.ranks[0].end, 3 * sends + gate, 1e-12);
  EXPECT_NEAR(times.ranks[1].end, 3 * sends + gate + kHop + 2 * kStep + kBytes * 2 * kTouch, 1e-12);
}

TEST(Simulations, count_what_is_written_for_others_and_data_that_leave_the_cache) {
  constexpr double kBytes = 65536;
  Machine machine = testing::machine_of(2);
  machine.host.times.published = RateCurve(1e9);
  // Rank 0 uses its input and the scratch of rank 1; rank 1 its scratch and its output.
  machine.host.times.touched = RateCurve({{kBytes, 1e12}, {2 * kBytes, 1e10}});
  const Times times = run(message(), 65536, machine);
  const double first = kCall + 2 * kStep + kBytes * (2 * kTouch + kExchange + 1e-9);
  EXPECT_NEAR(times.ranks[0].end, first, 1e-12);
  EXPECT_NEAR(times.seconds, first + kHop + 2 * kStep + kBytes * 2 * kTouch, 1e-12);
}

TEST(Simulations, copy_by_the_kernel_where_the_machine_lets_ranks_read) {
  constexpr double kBytes = 65536;
  Machine machine = testing::machine_of(2);
  machine.host.times.read = RateCurve(4e9);
  const topology::Topology topology = *topology_of(machine, 2);
  EXPECT_TRUE(topology.readable());
  const auto* zero_copy = *plan::algorithm_by_name(Collective::kAllGather, "zero_copy");
  const plan::Plan plan = *plan::make_plan(*zero_copy, topology, {.collective = Collective::kAllGather});
  const Times times = run(plan, 65536, machine);
  // Each tells the other where its input is, copies its own part, reads the other part, and tells that it has done so.
  const double ready = kCall + kStep + kHop;
  const double copies = 4 * kStep + kBytes * (2 * kTouch + 1 / 4e9);
  EXPECT_NEAR(times.seconds, ready + copies + kHop, 3 * kStep + kHop);
}

TEST(Simulations, of_ranks_that_share_a_core_run_one_rank_after_the_other) {
  constexpr double kBytes = 65536, kSwitch = 3e-6;
  Machine machine = testing::machine_of(2);
  machine.host.cores = 1;
  machine.host.core_switch_seconds = kSwitch;
  const Times times = run(message(), 65536, machine);
  // Rank 0 runs to its end, rank 1 gets the core, and the signal has long been there.
  const double first = kCall + 2 * kStep + kBytes * (2 * kTouch + kExchange);
  EXPECT_NEAR(times.ranks[0].end, first, 1e-12);
  EXPECT_NEAR(times.seconds, first + kSwitch + 2 * kStep + kBytes * 2 * kTouch, 1e-12);
}

TEST(Simulations, of_ranks_that_share_a_core_switch_whenever_one_waits) {
  constexpr int kTrips = 3;
  constexpr double kSwitch = 3e-6;
  plan::PlanBuilder builder("trips", {.collective = Collective::kBarrier}, 2, {});
  for (int id = 0; id < kTrips; ++id) {
    builder.on(0).signal(1, id).wait(1, id);
    builder.on(1).wait(0, id).signal(0, id);
  }
  const plan::Plan plan = *std::move(builder).build();
  Machine machine = testing::machine_of(1);
  machine.host.cores = 1;
  machine.host.core_switch_seconds = kSwitch;
  machine.network.hosts_share_cores = true;  // two hosts on one core
  machine.network.message_seconds = machine.network.latency_seconds = 0;
  const Times apart = run(plan, 0, machine);
  EXPECT_NEAR(apart.seconds, kCall + kTrips * (4 * kStep + 2 * kSwitch), kSwitch + 1e-7);
  machine.network.hosts_share_cores = false;
  EXPECT_NEAR(run(plan, 0, machine).seconds, kCall + kTrips * 4 * kStep, 1e-7);
}

TEST(Simulations, of_long_messages_have_two_rounds_in_flight) {
  Machine machine = testing::machine_of(2);
  machine.host.times.seconds_per_hop = 1;  // nothing else counts
  const Times times = run(message(), 5 * kSlot, machine);
  // Rounds 0 and 1 arrive after one hop. Each two later rounds need a hop until their sender may begin, and one more.
  EXPECT_NEAR(times.seconds, 5, 0.1);
}

TEST(Simulations, of_copies_share_the_memory_of_their_host) {
  Machine machine = testing::machine_of(2);
  machine.host.memory_bytes_per_second = 1e9;  // slower than the ranks
  const Times times = run(message(), kSlot, machine);
  EXPECT_NEAR(times.seconds, 4.0 * kSlot / 1e9, 1e-5);
  const plan::Plan gather = plan::testing::whole_plan(Collective::kAllGather, "direct", 2);
  machine.host.memory_bytes_per_second = 0;
  const double alone = run(gather, kSlot, machine).seconds;
  machine.host.memory_bytes_per_second = 1e9;
  EXPECT_GT(run(gather, kSlot, machine).seconds, 2 * alone);
}

TEST(Simulations, of_hierarchical_sums_move_the_published_bytes_between_hosts) {
  constexpr std::size_t kBytes = std::size_t{1} << 18;
  for (const int hosts : {2, 4, 8}) {
    const Machine machine = testing::machine_of(4);
    const Result<topology::Topology> topology = topology_of(machine, 4 * hosts);
    ASSERT_TRUE(topology.ok());
    const auto entry = plan::algorithm_by_name(Collective::kAllReduce, "hierarchical");
    ASSERT_TRUE(entry.ok());
    const Result<plan::Plan> plan = plan::make_plan(**entry, *topology, {.collective = Collective::kAllReduce});
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    const Times times = run(*plan, kBytes, machine);
    for (int host = 0; host < hosts; ++host) {
      EXPECT_DOUBLE_EQ(times.link_bytes[static_cast<std::size_t>(2 * host)], 2.0 * (hosts - 1) / hosts * kBytes);
    }
  }
}

TEST(Simulations, end_for_every_algorithm_between_ranks_of_a_host) {
  for (const plan::AlgorithmEntry& entry : plan::algorithms()) {
    if (entry.multicasts || entry.buffers != plan::Buffers::kAnywhere) continue;
    const int size = entry.collective == Collective::kSendRecv ? 2 : 4;
    const plan::Plan plan = plan::testing::whole_plan(entry.collective, entry.name, size);
    for (const std::size_t bytes : {8, 5000, 3 << 20}) {
      const std::size_t given = entry.collective == Collective::kBarrier ? 0 : bytes;
      EXPECT_GT(run(plan, given, testing::machine_of(size)).seconds, kCall) << plan.name;
    }
  }
}

TEST(Simulations, let_lanes_of_a_rank_share_the_memory_one_after_the_other) {
  Machine machine = testing::machine_of(1);
  machine.host.memory_bytes_per_second = 1e9;
  const Op copy{.length = 1000000, .seconds_per_element = 1e-10, .bytes_per_element = 1};
  Programs programs;
  programs.programs = {{{copy, copy}, {copy}}};
  programs.ranks = 1;
  programs.slice = 1000000;
  const Result<Times> times = simulate(programs, machine, *topology_of(machine, 1));
  ASSERT_TRUE(times.ok()) << times.status().message();
  EXPECT_NEAR(times->seconds, kCall + 3e-3, 1e-12);
}

TEST(Simulations, in_which_a_rank_waits_forever_are_an_error_that_names_it) {
  const Machine machine = testing::machine_of(2);
  Programs programs;
  programs.programs = {{Lane()}, {{{.kind = OpKind::kWait, .event = 0}}}};
  programs.ranks = 2;
  programs.events = 1;
  const Result<Times> times = simulate(programs, machine, *topology_of(machine, 2));
  EXPECT_EQ(times.status().code(), StatusCode::kInternal);
  EXPECT_EQ(times.status().message(), "rank 1 waits forever in round 0");
}

}  // namespace
}  // namespace accord::sim
