#include "accord/communicator.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "simulation/world.hpp"

namespace accord::simulation {
namespace {

using std::chrono::seconds;

CommunicatorOptions options() { return {.name = "world", .timeout = seconds(2), .hints = "wait=yield,slot_bytes=4k"}; }

/// Observations of a rank, for the test to check after the run: a failed assertion would allocate memory of the
/// process.
struct Seen {
  StatusCode created = StatusCode::kInternal;
  StatusCode called = StatusCode::kInternal;
  std::vector<Rank> named;
  bool is_right = true;
  Time took = 0;
  std::size_t endpoints = 0, endpoints_after = 1;
};

/// Runs `body` on four ranks with a communicator.
template <typename Body>
std::vector<Seen> run_ranks(World& world, Body body) {
  constexpr int kRanks = 4;
  std::vector<Seen> seen(kRanks);
  for (Seen& one : seen) one.named.reserve(kRanks);
  for (Rank rank = 0; rank < kRanks; ++rank)
    world.scheduler().start_process("rank " + std::to_string(rank), 0, [&, rank] {
      Result<Communicator> made = Communicator::create(world.store(), rank, kRanks, options());
      seen[rank].created = made.status().code();
      if (made.ok()) body(*made, seen[rank]);
    });
  const Outcome outcome = world.scheduler().run(60 * kSecond);
  EXPECT_TRUE(outcome.all_ended) << outcome.stuck;
  return seen;
}

TEST(SimulatedCommunicator, ranks_meet_compute_and_leave_nothing_behind) {
  std::uint64_t traces[2] = {};
  for (std::uint64_t& trace : traces) {
    World world(7);
    const auto seen = run_ranks(world, [&](Communicator& communicator, Seen& mine) {
      for (int i = 0; i < 20; ++i) {
        std::vector<std::int64_t> values(100, communicator.rank() + i);
        mine.called = communicator.all_reduce({values.data(), values.size(), DType::kInt64}, ReduceOp::kSum).code();
        mine.is_right &= values == std::vector<std::int64_t>(100, 6 + 4 * i);
      }
      const Process& process = *Scheduler::fiber()->process;
      mine.endpoints = world.residents().count(process);
      communicator.close();
      mine.endpoints_after = world.residents().count(process);
    });
    for (const Seen& one : seen) {
      EXPECT_EQ(one.created, StatusCode::kOk);
      EXPECT_EQ(one.called, StatusCode::kOk);
      EXPECT_TRUE(one.is_right);
      EXPECT_EQ(one.endpoints, 1);
      EXPECT_EQ(one.endpoints_after, 0);
    }
    trace = world.scheduler().trace();
  }
  EXPECT_EQ(traces[0], traces[1]);
}

TEST(SimulatedCommunicator, a_rank_that_exits_is_named_by_all_others_within_a_second) {
  World world(3);
  const auto seen = run_ranks(world, [&](Communicator& communicator, Seen& mine) {
    if (communicator.rank() == 2) Scheduler::current()->exit();
    const Time begin = Scheduler::current()->now();
    const Status status = communicator.barrier();
    mine.called = status.code();
    mine.named = status.ranks();
    mine.took = Scheduler::current()->now() - begin;
  });
  for (const Rank rank : {0, 1, 3}) {
    EXPECT_EQ(seen[rank].called, StatusCode::kPeerLost);
    EXPECT_EQ(seen[rank].named, std::vector<Rank>{2});
    EXPECT_LT(seen[rank].took, kSecond);
  }
}

}  // namespace
}  // namespace accord::simulation
