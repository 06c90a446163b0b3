// Maps and overflow, checked by value.
#include "expert/routing.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

namespace accord::expert {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

/// Returns a map of ids[rank][choice], with one or more experts on each rank.
Routing routing_of(const std::vector<std::vector<std::int32_t>>& ids, const Placement& placement, RoutingShape shape) {
  Routing routing;
  routing.shape = shape;
  std::size_t choices = 0;
  for (const auto& list : ids) choices += list.size();
  reserve(routing, placement, static_cast<std::int64_t>(choices));
  std::size_t at = 0;
  for (std::size_t rank = 0; rank < ids.size(); ++rank) {
    routing.first_token[rank + 1] =
        routing.first_token[rank] + static_cast<std::int64_t>(ids[rank].size()) / shape.top_k;
    read_ids({ids[rank].data(), ids[rank].size(), DType::kInt32}, shape.top_k, placement.experts,
             std::span(routing.expert).subspan(at, ids[rank].size()), routing.ranks[rank]);
    at += ids[rank].size();
  }
  route(routing, placement);
  return routing;
}

Placement uniform(int experts, int ranks) {
  return *make_placement(*uniform_expert_placement(experts, ranks), experts, ranks);
}

TEST(Ids, invalid_and_duplicate_ids_are_ignored_and_counted) {
  const std::vector<std::int64_t> ids = {3, 3, -1, 2, 4, -2, 0, std::int64_t{1} << 40, 0};
  std::vector<std::int32_t> read(ids.size());
  ExpertRankCounts counts;
  read_ids({ids.data(), ids.size(), DType::kInt64}, 3, 4, read, counts);
  EXPECT_THAT(read, ElementsAre(3, -1, -1, 2, -1, -1, 0, -1, -1));
  EXPECT_EQ(counts.out_of_range, 3);
  EXPECT_EQ(counts.duplicates, 2);
}

TEST(Ids, the_same_expert_in_another_token_is_not_a_duplicate) {
  const std::vector<std::int32_t> ids = {1, 0, 1, 0};
  std::vector<std::int32_t> read(ids.size());
  ExpertRankCounts counts;
  read_ids({ids.data(), ids.size(), DType::kInt32}, 2, 2, read, counts);
  EXPECT_THAT(read, ElementsAre(1, 0, 1, 0));
  EXPECT_EQ(counts.duplicates, 0);
}

TEST(Routing, slots_are_by_expert_then_rank_then_token_and_padded) {
  const Routing routing = routing_of({{1, 0, 1}, {0, 3, 1}}, uniform(4, 2), {.top_k = 1, .alignment = 2});
  EXPECT_THAT(routing.rows, ElementsAre(2, 3, 0, 1));
  EXPECT_THAT(routing.counts, ElementsAre(2, 4, 0, 2));
  EXPECT_THAT(routing.offsets, ElementsAre(0, 2, 0, 0));
  EXPECT_THAT(routing.slot, ElementsAre(2, 0, 3, 1, 0, 4));
  EXPECT_EQ(routing.ranks[0].recv_rows, 6);
  EXPECT_EQ(routing.ranks[1].recv_rows, 2);
  EXPECT_FALSE(routing.overflows);
}

TEST(Routing, replicas_alternate_by_rank_and_token) {
  const Placement placement = *make_placement({{0, 1}, {1}, {1, 1}}, 2, 3);
  EXPECT_THAT(placement.replicas, ElementsAre(0, 1, 2, 3, 4));
  const Routing routing = routing_of({{1, 1}, {1, 1, 1}, {}}, placement, {.top_k = 1});
  EXPECT_THAT(routing.place, ElementsAre(1, 2, 2, 3, 4));
}

TEST(Overflow, by_slot_the_last_experts_lose_rows) {
  const Placement placement = uniform(3, 1);
  Routing routing = routing_of({{0, 1, 2, 0, 1, 2}}, placement, {.top_k = 3, .alignment = 2, .max_recv_rows = 3});
  EXPECT_TRUE(routing.overflows);
  drop_by_slot(routing, placement);
  EXPECT_THAT(routing.counts, ElementsAre(2, 1, 0));
  EXPECT_THAT(routing.rows, ElementsAre(2, 1, 0));
  EXPECT_EQ(routing.ranks[0].recv_rows, 3);
  EXPECT_EQ(routing.ranks[0].total_rows, 6);
  EXPECT_THAT(routing.dropped, ElementsAre(ExpertChoice{0, 0, 2}, ExpertChoice{0, 1, 1}, ExpertChoice{0, 1, 2}));
}

TEST(Overflow, by_weight_the_lowest_and_of_equal_ones_the_last_is_dropped) {
  const Placement placement = uniform(2, 1);
  Routing routing = routing_of({{0, 1, 0, 1, 0, 1}}, placement, {.top_k = 2, .max_recv_rows = 3});
  drop_by_weight(routing, placement, std::vector<double>{0.5, 0.25, 0.25, 0.75, 0.25, 0.5});
  EXPECT_THAT(routing.dropped, ElementsAre(ExpertChoice{0, 0, 1}, ExpertChoice{0, 1, 0}, ExpertChoice{0, 2, 0}));
  EXPECT_THAT(routing.counts, ElementsAre(1, 2));
  EXPECT_THAT(routing.place, ElementsAre(0, -1, -1, 1, -1, 1));
  EXPECT_EQ(routing.slot[0], 0);
  EXPECT_EQ(routing.slot[3], 1);
  EXPECT_EQ(routing.slot[5], 2);
}

TEST(Overflow, by_weight_a_nan_is_the_lowest) {
  const Placement placement = uniform(1, 1);
  Routing routing = routing_of({{0, 0, 0}}, placement, {.top_k = 1, .max_recv_rows = 2});
  drop_by_weight(routing, placement, std::vector<double>{-5.0, NAN, 1.0});
  EXPECT_THAT(routing.dropped, ElementsAre(ExpertChoice{0, 1, 0}));
}

TEST(Overflow, dropped_rows_that_fit_into_padding_are_restored) {
  // Three rows of each expert make 8 with padding. Rows are dropped until one expert has only two. The row of the
  // other expert that was dropped on the way fits into the padding that remains.
  const Placement placement = uniform(2, 1);
  Routing routing = routing_of({{0, 0, 0, 1, 1, 1}}, placement, {.top_k = 1, .alignment = 2, .max_recv_rows = 6});
  drop_by_weight(routing, placement, std::vector<double>{0.3, 0.8, 0.9, 0.1, 0.2, 0.7});
  EXPECT_THAT(routing.rows, ElementsAre(3, 2));
  EXPECT_THAT(routing.counts, ElementsAre(4, 2));
  EXPECT_THAT(routing.dropped, ElementsAre(ExpertChoice{0, 3, 0}));
}

TEST(Overflow, only_ranks_that_overflow_lose_rows) {
  const Placement placement = uniform(2, 2);
  Routing routing = routing_of({{0, 0, 1}, {0}}, placement, {.top_k = 1, .max_recv_rows = 2});
  drop_by_weight(routing, placement, std::vector<double>{0.5, 0.1, 0.0, 0.7});
  EXPECT_THAT(routing.dropped, ElementsAre(ExpertChoice{0, 1, 0}));
  EXPECT_EQ(routing.ranks[1].recv_rows, 1);
  EXPECT_EQ(routing.ranks[0].dropped, 1);
}

TEST(Overflow, preparing_a_map_again_clears_its_overflow) {
  const Placement placement = uniform(1, 1);
  Routing routing = routing_of({{0, 0}}, placement, {.top_k = 1, .max_recv_rows = 1});
  drop_by_slot(routing, placement);
  ASSERT_EQ(routing.dropped.size(), 1U);
  routing.expert = {0, -1};
  route(routing, placement);
  EXPECT_THAT(routing.dropped, IsEmpty());
  EXPECT_FALSE(routing.overflows);
  EXPECT_EQ(routing.ranks[0].dropped, 0);
}

}  // namespace
}  // namespace accord::expert
