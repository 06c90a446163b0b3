#include "base/ticks.hpp"

#include <gtest/gtest.h>

#include <thread>

namespace accord {
namespace {

TEST(Ticks, convert_to_the_time_at_which_they_were_taken) {
  for (const TickSource source : {tick_source(), TickSource::kMonotonic}) {
    const Moment first = moment_now(source);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    const std::int64_t before = Clock::now().time_since_epoch().count();
    const std::uint64_t ticks = ticks_now(source);
    const std::int64_t after = Clock::now().time_since_epoch().count();
    const Moment second = moment_now(source);
    constexpr std::int64_t kReadTime = 2000;  // ns that reading the clock may take
    EXPECT_GE(monotonic_of(ticks, first, second), before - kReadTime);
    EXPECT_LE(monotonic_of(ticks, first, second), after + kReadTime);
  }
}

TEST(Ticks, are_interpolated_between_two_moments) {
  const Moment first{.ticks = 1000, .monotonic_ns = 50, .unix_ns = 0},
      second{.ticks = 4000, .monotonic_ns = 1050, .unix_ns = 0};
  EXPECT_EQ(monotonic_of(1000, first, second), 50);
  EXPECT_EQ(monotonic_of(2500, first, second), 550);
  EXPECT_EQ(monotonic_of(700, first, second), -50);
  EXPECT_EQ(monotonic_of(2500, first, first), 50);
}

}  // namespace
}  // namespace accord
