// The expected values are the formulas of the papers from which the algorithms come.

#include "plan/cost.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>

#include "unit/plan/plans_for_tests.hpp"

namespace accord::plan {
namespace {

using testing::whole_plan;

TEST(Cost, of_two_shot_is_two_hops_and_twice_the_message_minus_a_part) {
  for (const std::size_t n : {2, 3, 4, 8}) {
    const std::size_t bytes = n * 64 * 100;
    const Cost cost = cost_of(whole_plan(Collective::kAllReduce, "two_shot", static_cast<int>(n)), bytes / 4, 4);
    EXPECT_EQ(cost.hops, 2);
    EXPECT_EQ(cost.bytes_exchanged, 2 * (n - 1) * bytes / n);
    EXPECT_EQ(cost.bytes_added, (n - 1) * bytes / n);
  }
}

TEST(Cost, of_one_shot_and_packets_is_one_hop_and_the_message_of_every_peer) {
  for (const std::string_view name : {"one_shot", "packet"}) {
    const Cost cost = cost_of(whole_plan(Collective::kAllReduce, name, 5), 1000, 4);
    EXPECT_EQ(cost.hops, 1);
    EXPECT_EQ(cost.bytes_exchanged, 4 * 4000U);
    EXPECT_EQ(cost.bytes_added, 4 * 4000U);
  }
}

TEST(Cost, of_data_movement_is_the_bytes_moved) {
  EXPECT_EQ(cost_of(whole_plan(Collective::kBroadcast, "direct", 4), 100, 8).bytes_exchanged, 800U);
  EXPECT_EQ(cost_of(whole_plan(Collective::kBroadcast, "packet", 4), 100, 8).bytes_exchanged, 2400U);
  EXPECT_EQ(cost_of(whole_plan(Collective::kAllGather, "direct", 4), 100, 8).bytes_exchanged, 2400U);
  EXPECT_EQ(cost_of(whole_plan(Collective::kReduceScatter, "direct", 4), 100, 8).bytes_exchanged, 2400U);
  const Cost message = cost_of(whole_plan(Collective::kSendRecv, "direct", 2), 100, 8);
  EXPECT_EQ(message.bytes_exchanged, 800U);
  EXPECT_EQ(message.bytes_touched, 1600U);
  EXPECT_EQ(message.bytes_added, 0U);
}

TEST(Cost, of_all_gathers_is_all_other_parts_in_the_published_number_of_hops) {
  for (const std::size_t n : {2, 3, 4, 5, 7, 8, 9, 16, 17, 64}) {
    const auto logarithm = static_cast<int>(std::bit_width(n - 1));  // rounded up
    for (const auto& [name, hops] : {std::pair{"ring", static_cast<int>(n) - 1},
                                     {"recursive_doubling", logarithm},
                                     {"bruck", logarithm},
                                     {"direct", 1}}) {
      const Cost cost = cost_of(whole_plan(Collective::kAllGather, name, static_cast<int>(n)), 100, 8);
      EXPECT_EQ(cost.hops, hops) << name << " of " << n;
      EXPECT_EQ(cost.bytes_exchanged, (n - 1) * 800) << name << " of " << n;
    }
  }
}

TEST(Cost, of_broadcasts_is_the_message_once_in_the_published_number_of_hops) {
  for (const std::size_t n : {2, 3, 4, 5, 7, 8, 9, 16, 17, 64}) {
    for (const auto& [name, hops] : {std::pair{"binomial", static_cast<int>(std::bit_width(n)) - 1},  // rounded down
                                     {"chain", static_cast<int>(n) - 1},  // for the last chunk, which waits for none
                                     {"scatter_all_gather", n == 2 ? 1 : 2}}) {
      const Cost cost = cost_of(whole_plan(Collective::kBroadcast, name, static_cast<int>(n)), n * 64, 8);
      EXPECT_EQ(cost.hops, hops) << name << " of " << n;
      EXPECT_EQ(cost.bytes_exchanged, n * 512) << name << " of " << n;
    }
  }
}

TEST(Cost, of_all_to_alls_is_every_part_once_or_once_for_each_bit_of_its_distance) {
  for (const std::size_t n : {2, 3, 4, 5, 7, 8, 9, 16, 17, 64}) {
    std::size_t bits = 0;
    for (std::size_t distance = 1; distance < n; ++distance) bits += static_cast<std::size_t>(std::popcount(distance));
    const Plan bruck = whole_plan(Collective::kAllToAll, "bruck", static_cast<int>(n));
    EXPECT_EQ(cost_of(bruck, 10, 8).hops, static_cast<int>(std::bit_width(n - 1))) << n;
    EXPECT_EQ(cost_of(bruck, 10, 8).bytes_exchanged, bits * 80) << n;
    const Plan pairwise = whole_plan(Collective::kAllToAll, "pairwise", static_cast<int>(n));
    EXPECT_LE(cost_of(pairwise, 10, 8).hops, static_cast<int>(n)) << n;
    EXPECT_GE(cost_of(pairwise, 10, 8).hops, static_cast<int>(n) / 2) << n;
    EXPECT_EQ(cost_of(pairwise, 10, 8).bytes_exchanged, (n - 1) * 80) << n;
  }
}

TEST(Cost, of_binomial_trees_is_the_subtree_in_a_hop_for_each_level) {
  for (const std::size_t n : {2, 3, 4, 5, 7, 8, 9, 16, 17, 64}) {
    for (const Collective collective : {Collective::kGather, Collective::kScatter}) {
      const Plan plan = whole_plan(collective, "binomial", static_cast<int>(n), 1);
      EXPECT_EQ(cost_of(plan, 10, 8).hops, static_cast<int>(std::bit_width(n)) - 1) << to_string(plan);
      // The root of a gather reads all other parts. In a scatter, node 2^k or the half of it before it reads most.
      const std::size_t half = std::bit_ceil(n) / 2;
      const std::size_t most = collective == Collective::kGather ? n - 1 : std::max(n - half, half / 2);
      EXPECT_EQ(cost_of(plan, 10, 8).bytes_exchanged, most * 80) << to_string(plan);
    }
  }
}

TEST(Cost, of_sums_along_the_tree_matches_the_published_values) {
  for (const std::size_t n : {2, 4, 8, 16, 64}) {
    const auto logarithm = static_cast<int>(std::bit_width(n - 1));
    const std::size_t bytes = n * 64 * 10;
    const auto cost = [&](Collective collective, std::string_view name, std::size_t count) {
      return cost_of(whole_plan(collective, name, static_cast<int>(n)), count, 4);
    };
    const Cost halving = cost(Collective::kReduceScatter, "recursive_halving", bytes / n / 4);
    EXPECT_EQ(halving.hops, logarithm) << n;
    EXPECT_EQ(halving.bytes_exchanged, (n - 1) * bytes / n) << n;
    EXPECT_EQ(halving.bytes_added, (n - 1) * bytes / n) << n;
    const Cost rabenseifner = cost(Collective::kAllReduce, "rabenseifner", bytes / 4);
    EXPECT_EQ(rabenseifner.hops, 2 * logarithm) << n;
    EXPECT_EQ(rabenseifner.bytes_exchanged, 2 * (n - 1) * bytes / n) << n;
    for (const Collective collective : {Collective::kAllReduce, Collective::kReduce}) {
      const char* name = collective == Collective::kReduce ? "binomial" : "recursive_doubling";
      EXPECT_EQ(cost(collective, name, bytes / 4).hops, logarithm) << n;
      EXPECT_EQ(cost(collective, name, bytes / 4).bytes_exchanged, static_cast<std::size_t>(logarithm) * bytes) << n;
    }
  }
}

TEST(Cost, of_sums_along_the_tree_is_logarithmic_for_any_number_of_ranks) {
  for (int n = 2; n <= 33; ++n) {
    const auto logarithm = static_cast<int>(std::bit_width(static_cast<unsigned>(n - 1)));
    EXPECT_EQ(cost_of(whole_plan(Collective::kAllReduce, "recursive_doubling", n), 8, 4).hops, logarithm) << n;
    EXPECT_EQ(cost_of(whole_plan(Collective::kReduceScatter, "recursive_halving", n), 8, 4).hops, logarithm) << n;
    const auto parts = static_cast<std::size_t>(n);
    EXPECT_LT(cost_of(whole_plan(Collective::kReduceScatter, "recursive_halving", n), 8, 4).bytes_exchanged,
              2 * parts * 32)
        << n;
  }
}

TEST(Cost, of_partials_is_that_of_their_accumulators) {
  const Plan plan = whole_plan(Collective::kAllReduce, "recursive_doubling", 4);
  EXPECT_EQ(cost_of(plan, 100, 2, 4).bytes_exchanged, 200U + 400U);  // the input of one rank, the sum of two
  EXPECT_EQ(cost_of(plan, 100, 4).bytes_exchanged, 800U);
}

TEST(Cost, of_barriers_is_one_hop_or_the_logarithm) {
  EXPECT_EQ(cost_of(whole_plan(Collective::kBarrier, "direct", 9), 0, 1).hops, 1);
  EXPECT_EQ(cost_of(whole_plan(Collective::kBarrier, "direct", 9), 0, 1).steps, 16);
  EXPECT_EQ(cost_of(whole_plan(Collective::kBarrier, "dissemination", 9), 0, 1).hops, 4);
  EXPECT_EQ(cost_of(whole_plan(Collective::kBarrier, "dissemination", 9), 0, 1).steps, 8);
  EXPECT_EQ(cost_of(whole_plan(Collective::kBarrier, "dissemination", 8), 0, 1).hops, 3);
  EXPECT_EQ(cost_of(whole_plan(Collective::kBarrier, "binomial", 8), 0, 1).hops, 6);
  EXPECT_EQ(cost_of(whole_plan(Collective::kBarrier, "binomial", 8), 0, 1).steps, 6);
}

TEST(Cost, of_one_rank_is_a_copy) {
  const Cost cost = cost_of(whole_plan(Collective::kAllReduce, "two_shot", 1), 10, 4);
  EXPECT_EQ(cost.steps, 1);
  EXPECT_EQ(cost.hops, 0);
  EXPECT_EQ(cost.bytes_exchanged, 0U);
  EXPECT_EQ(cost.bytes_touched, 80U);
}

TEST(Cost, hops_pass_through_lane_barriers) {
  PlanBuilder plan("relay", {.collective = Collective::kBarrier}, 3, {});
  plan.on(0).signal(1).wait(2);
  plan.on(1).wait(0).lane_barrier(0).lane(1).lane_barrier(0).signal(2);
  plan.on(2).wait(1).signal(0);
  const Result<Plan> built = std::move(plan).build();
  ASSERT_TRUE(built.ok());
  EXPECT_EQ(cost_of(*built, 0, 1).hops, 3);
}

TEST(Cost, of_packets_counts_bytes_written_and_read) {
  // Each of 4 ranks puts its 100 floats for 3 peers and takes the floats of 3 peers.
  EXPECT_EQ(cost_of(whole_plan(Collective::kAllReduce, "packet", 4), 100, 4).bytes_in_packets, 6 * 400U);
  EXPECT_EQ(cost_of(whole_plan(Collective::kAllReduce, "one_shot", 4), 100, 4).bytes_in_packets, 0U);
}

TEST(Cost, predicted_time_repeats_hops_and_steps_each_round_and_counts_bytes_once) {
  const Cost cost{.steps = 7, .hops = 2, .bytes_exchanged = 100, .bytes_touched = 1000, .bytes_in_packets = 10};
  const MachineTimes times{.seconds_per_hop = 1,
                           .seconds_per_step = 0.5,
                           .seconds_per_byte_touched = 0.01,
                           .seconds_per_byte_exchanged = 0.1,
                           .seconds_per_byte_in_packets = 3};
  EXPECT_DOUBLE_EQ(predicted_seconds(cost, 1, times), 2 + 3.5 + 10 + 10 + 30);
  EXPECT_DOUBLE_EQ(predicted_seconds(cost, 4, times), 4 * 5.5 + 50);
}

}  // namespace
}  // namespace accord::plan
