// The decisions of the tuner, on made-up times.
#include "cli/tune/winners.hpp"

#include <gtest/gtest.h>

#include <limits>

namespace accord::cli {
namespace {

constexpr double kMicro = 1e-6;

TunedPoint point(std::size_t bytes, std::vector<double> by_default, std::vector<double> ring) {
  return {.bytes = bytes,
          .timings = {{"default", "two_shot", std::move(by_default)}, {"ring", "ring", std::move(ring)}}};
}

TEST(Winner, is_the_fastest_candidate_of_the_rounds) {
  const Winner winner = winner_of(point(8, {4e-6, 4e-6, 4e-6}, {2e-6, 2e-6, 2e-6}));
  EXPECT_EQ(winner.candidate, "ring");
  EXPECT_DOUBLE_EQ(winner.gain, 2);
}

TEST(Winner, is_the_default_where_the_difference_is_noise) {
  EXPECT_EQ(winner_of(point(8, {1.03, 1.03, 1.03}, {1, 1, 1})).candidate, "default") << "3 %";
  EXPECT_EQ(winner_of(point(8, {2, 2, 2, 1, 1}, {1, 1, 1, 2, 2})).candidate, "default") << "slower in two rounds";
  EXPECT_EQ(winner_of(point(8, {2, 2, 2, 2, 1}, {1, 1, 1, 1, 2})).candidate, "ring") << "slower in one round";
}

TEST(Winner, is_determined_per_round_because_machines_drift) {
  // The machine became ten times slower; ring took half the time in every round.
  EXPECT_EQ(winner_of(point(8, {2, 2, 20, 20, 20}, {1, 1, 10, 10, 10})).candidate, "ring");
}

TEST(Ranges, with_equal_winners_are_merged_and_split_half_way) {
  const std::vector<double> slow = {2, 2, 2}, quick = {1, 1, 1};
  const std::vector<TunedRange> ranges =
      ranges_of({point(8, quick, slow), point(32, slow, quick), point(128, slow, quick), point(512, quick, slow)});
  ASSERT_EQ(ranges.size(), 3U);
  EXPECT_EQ(ranges[0].from_bytes, 0U);
  EXPECT_EQ(ranges[0].to_bytes, 16U);
  EXPECT_EQ(ranges[1].from_bytes, 16U);
  EXPECT_EQ(ranges[1].to_bytes, 256U);
  EXPECT_EQ(ranges[1].winners.front().candidate, "ring");
  EXPECT_EQ(ranges[2].to_bytes, std::numeric_limits<std::size_t>::max());
}

TEST(Rules, include_measurements_and_omit_the_default) {
  const auto micro = [](double us) { return std::vector<double>(5, us * kMicro); };
  const std::string text = rules_text({.operation = *bench_operation("all_reduce"),
                                       .conditions = "[ranks=2-2]",
                                       .points = {point(8, micro(3), micro(1)), point(32, micro(1), micro(3))}});
  EXPECT_EQ(text,
            "all_reduce[ranks=2-2]:0-16=ring;  # 1 us at 8 B, by default 3 us: 3.00 x\n"
            "# all_reduce[ranks=2-2]:16-inf as by default  # 1 us at 32 B\n");
}

}  // namespace
}  // namespace accord::cli
