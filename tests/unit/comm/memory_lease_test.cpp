// Leases on memory: who still has it, and when it is released.
#include "comm/device/memory_lease.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <functional>
#include <optional>

#include "comm/progress.hpp"
#include "ranks/process_ranks.hpp"

namespace accord::comm {
namespace {

bool is_soon(const std::function<bool()>& condition) {
  const Deadline late = Deadline::in(std::chrono::seconds(20));
  while (!condition() && !late.passed()) ::usleep(100);
  return condition();
}

TEST(MemoryLease, ends_when_its_holder_destroys_it) {
  MemoryLeases leases = MemoryLeases::create().value();
  {
    const MemoryLease first = MemoryLease::take(leases.name()).value();
    MemoryLease second = MemoryLease::take(leases.name()).value();
    leases.accept();
    EXPECT_FALSE(leases.have_ended());
    { const MemoryLease moved = std::move(second); }
    EXPECT_FALSE(leases.have_ended());
  }
  EXPECT_TRUE(leases.have_ended());
}

TEST(MemoryLease, cannot_be_taken_once_the_owner_may_release) {
  MemoryLeases leases = MemoryLeases::create().value();
  EXPECT_TRUE(leases.have_ended());
  EXPECT_EQ(MemoryLease::take(leases.name()).status().code(), StatusCode::kPeerLost);
}

TEST(MemoryLease, a_lease_that_was_taken_but_not_accepted_counts) {
  MemoryLeases leases = MemoryLeases::create().value();
  {
    const MemoryLease lease = MemoryLease::take(leases.name()).value();
    EXPECT_FALSE(leases.have_ended());
  }
  EXPECT_TRUE(leases.have_ended());
}

TEST(MemoryLease, ends_with_the_process_of_its_holder) {
  MemoryLeases leases = MemoryLeases::create().value();
  std::array<int, 2> taken = {};
  ASSERT_EQ(::pipe(taken.data()), 0);
  testing::ProcessRanks holder(1, [&](Rank) -> int {
    const MemoryLease lease = MemoryLease::take(leases.name()).value();
    (void)::write(taken[1], "t", 1);
    while (true) ::pause();
  });
  char report = 0;
  ASSERT_EQ(::read(taken[0], &report, 1), 1);
  leases.accept();
  EXPECT_FALSE(leases.have_ended());
  holder.kill(0, SIGKILL);
  EXPECT_TRUE(is_soon([&] { return leases.have_ended(); }));
  ::close(taken[0]);
  ::close(taken[1]);
}

TEST(MemoryLease, a_forked_child_of_its_holder_does_not_prolong_it) {
  MemoryLeases leases = MemoryLeases::create().value();
  std::optional<MemoryLease> lease = MemoryLease::take(leases.name()).value();
  leases.accept();
  testing::ProcessRanks child(1, [&](Rank) -> int {
    while (true) ::pause();
  });
  lease.reset();
  EXPECT_TRUE(leases.have_ended());
  child.kill(0, SIGKILL);
}

TEST(MemoryLease, a_forked_child_of_its_holder_does_not_end_it) {
  ASSERT_TRUE(ProgressThread::start().ok());  // as with any group; it counts forks
  MemoryLeases leases = MemoryLeases::create().value();
  std::optional<MemoryLease> lease = MemoryLease::take(leases.name()).value();
  leases.accept();
  testing::ProcessRanks child(1, [&](Rank) -> int {
    lease.reset();
    return 0;
  });
  EXPECT_EQ(child.wait_all(Deadline::in(std::chrono::seconds(20))), std::vector<int>(1, 0));
  EXPECT_FALSE(leases.have_ended());
  lease.reset();
  EXPECT_TRUE(leases.have_ended());
}

TEST(MemoryLease, memory_is_released_after_the_last_lease_and_only_once) {
  int released = 0;
  MemoryLeases leases = MemoryLeases::create().value();
  std::optional<MemoryLease> lease = MemoryLease::take(leases.name()).value();
  release_after(std::move(leases), [&] { ++released; });
  release_waiting();
  EXPECT_EQ(released, 0);
  lease.reset();
  release_waiting();
  EXPECT_EQ(released, 1);
  release_waiting();
  EXPECT_EQ(released, 1);
  release_after(MemoryLeases::create().value(), [&] { ++released; });
  EXPECT_EQ(released, 2);
}

}  // namespace
}  // namespace accord::comm
