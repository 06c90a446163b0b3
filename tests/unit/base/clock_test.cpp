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

}  // namespace
}  // namespace accord
