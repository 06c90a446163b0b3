#include "base/clock.hpp"

#include <gtest/gtest.h>

#include "base/wait.hpp"

namespace accord {
namespace {

TEST(Deadline, of_zero_has_passed_and_leaves_no_time) {
  const Deadline deadline = Deadline::in(Duration::zero());
  EXPECT_TRUE(deadline.passed());
  EXPECT_EQ(deadline.remaining(), Duration::zero());
  EXPECT_EQ(deadline.poll_milliseconds(), 0);
  EXPECT_TRUE(Deadline::in(std::chrono::seconds(-5)).passed());
}

TEST(Deadline, too_far_away_to_represent_never_expires) {
  EXPECT_FALSE(Deadline::in(Duration::max()).passed());
  EXPECT_EQ(Deadline::in(Duration::max()).at(), Deadline::never().at());
  EXPECT_EQ(Deadline::never().poll_milliseconds(), 3600 * 1000);
}

TEST(Deadline, rounds_poll_milliseconds_up_so_that_poll_does_not_spin) {
  EXPECT_EQ(Deadline::in(std::chrono::hours(2)).poll_milliseconds(), 3600 * 1000);
  const int left = Deadline::in(std::chrono::microseconds(900'000)).poll_milliseconds();
  EXPECT_GT(left, 0);
  EXPECT_LE(left, 900);
}

TEST(Waiter, requests_periodic_checks_on_every_policy) {
  for (const WaitPolicy policy : {WaitPolicy::kSpin, WaitPolicy::kSpinBriefly, WaitPolicy::kYield}) {
    Waiter waiter(policy);
    int pauses = 1;
    while (!waiter.pause()) ++pauses;
    EXPECT_LE(pauses, 2001);
  }
}

TEST(Waiter, rests_in_a_long_wait_and_still_asks_for_checks) {
  Waiter waiter(WaitPolicy::kYield);
  const auto wait = [&](std::chrono::milliseconds time) {
    int pauses = 0, checks = 0;
    for (const auto begin = Clock::now(); Clock::now() - begin < time; ++pauses) checks += waiter.pause();
    return std::pair(pauses, checks);
  };
  wait(std::chrono::milliseconds(100));
  const auto [pauses, checks] = wait(std::chrono::milliseconds(50));
  EXPECT_LE(pauses, 50);  // of a millisecond each
  EXPECT_EQ(checks, pauses);
}

}  // namespace
}  // namespace accord
