// Placements, the balancer and the canonical tree, checked by value.
#include "expert/placement.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <random>

#include "expert/token_tree.hpp"

namespace accord::expert {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

void expect_refused(const ExpertPlacement& lists, int experts, int ranks, const std::string& text) {
  const Result<Placement> made = make_placement(lists, experts, ranks);
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(made.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(made.status().message(), HasSubstr(text));
}

TEST(Placements, invalid_input_is_named) {
  expect_refused({{0, 1}}, 2, 2, "lists for 1 ranks, but the group has 2 ranks");
  expect_refused({{0}, {2}}, 2, 2, "rank 1 has expert 2, but the experts are 0 to 1");
  expect_refused({{0}, {-1}}, 2, 2, "rank 1 has expert -1");
  expect_refused({{1, 0}, {}}, 2, 2, "experts of rank 0 are not in ascending order");
  expect_refused({{0}, {2}}, 3, 2, "no rank has expert 1");
  EXPECT_THAT(uniform_expert_placement(5, 2).status().message(),
              HasSubstr("5 experts cannot be divided evenly among 2"));
}

TEST(Placements, a_rank_with_a_whole_subtree_has_one_sum_for_each_token) {
  const auto nodes = [](const ExpertPlacement& lists, int experts) {
    return max_nodes(*make_placement(lists, experts, static_cast<int>(lists.size())), 8);
  };
  EXPECT_EQ(nodes(*uniform_expert_placement(32, 4), 32), 1);
  EXPECT_EQ(nodes({{0, 1, 2, 3}, {4, 5}}, 6), 1);  // the tree of six parts at four
  EXPECT_EQ(nodes({{0, 1, 2}, {3, 4, 5}}, 6), 3);  // rank 0 lacks 3
  EXPECT_EQ(nodes({{0, 2}, {1, 3}}, 4), 2);
  EXPECT_EQ(nodes({{0, 1}, {0, 1}}, 2), 2);  // replicas: another rank may have the other half
}

TEST(Balancer, hot_experts_get_replicas_and_ranks_get_even_loads) {
  const Result<ExpertPlacement> placement = balance_experts(std::vector<double>{90, 10, 10, 10, 10, 20}, 2, 4);
  ASSERT_TRUE(placement.ok());
  // The two places more than experts go to expert 0: a load of 30 for each of three replicas.
  std::vector<int> count(6);
  for (const auto& list : *placement) {
    EXPECT_EQ(list.size(), 4U);
    EXPECT_TRUE(std::is_sorted(list.begin(), list.end()));
    for (const int e : list) ++count[static_cast<std::size_t>(e)];
  }
  EXPECT_THAT(count, ElementsAre(3, 1, 1, 1, 1, 1));
}

TEST(Balancer, is_always_valid_and_within_the_list_scheduling_bound) {
  std::mt19937 random(7);
  for (int trial = 0; trial < 200; ++trial) {
    const int ranks = 1 + static_cast<int>(random() % 8), per_rank = 1 + static_cast<int>(random() % 6);
    const int experts = 1 + static_cast<int>(random() % static_cast<unsigned>(ranks * per_rank));
    std::vector<double> loads(static_cast<std::size_t>(experts));
    for (double& load : loads) load = static_cast<double>(random() % 1000) * static_cast<double>(random() % 1000);
    const Result<ExpertPlacement> placement = balance_experts(loads, ranks, per_rank);
    ASSERT_TRUE(placement.ok()) << placement.status().to_string();
    const Result<Placement> made = make_placement(*placement, experts, ranks);
    ASSERT_TRUE(made.ok()) << made.status().to_string();
    // The bound of list scheduling, from the mean and the largest share.
    double most = 0, mean = std::accumulate(loads.begin(), loads.end(), 0.0) / ranks, largest = 0;
    for (Rank rank = 0; rank < ranks; ++rank) {
      double work = 0;
      for (const int e : made->experts_of(rank)) {
        const double share = loads[static_cast<std::size_t>(e)] / (made->first_replica[e + 1] - made->first_replica[e]);
        work += share;
        largest = std::max(largest, share);
      }
      most = std::max(most, work);
      EXPECT_EQ(static_cast<int>(made->experts_of(rank).size()), per_rank);
    }
    EXPECT_LE(most, mean + per_rank * largest + 1e-6);
  }
}

TEST(Balancer, invalid_input_is_named) {
  EXPECT_THAT(balance_experts({}, 2, 2).status().message(), HasSubstr("no loads"));
  EXPECT_THAT(balance_experts(std::vector<double>{1, -2}, 2, 2).status().message(),
              HasSubstr("load of expert 1 is -2"));
  EXPECT_THAT(balance_experts(std::vector<double>{1, 2, 3}, 2, 1).status().message(),
              HasSubstr("2 places, expected 3 to"));
}

/// Returns the form of the sum, such as "((0+1)+4)", by the recursive definition: the two halves of the highest bit
/// in which the ids differ.
std::string form(const std::vector<std::int32_t>& ids) {
  if (ids.size() == 1) return std::to_string(ids[0]);
  int bit = 31;
  while (((ids.front() ^ ids.back()) >> bit & 1) == 0) --bit;
  std::vector<std::int32_t> low, high;
  for (const std::int32_t id : ids) (id >> bit & 1 ? high : low).push_back(id);
  return "(" + form(low) + "+" + form(high) + ")";
}

TEST(CanonicalTree, merges_follow_the_bits_of_ids_whatever_is_summed_beforehand) {
  std::mt19937 random(11);
  for (int trial = 0; trial < 500; ++trial) {
    std::vector<std::int32_t> ids;
    for (std::int32_t id = 0; id < 40; ++id)
      if (random() % 6 == 0) ids.push_back(id);
    if (ids.empty()) continue;
    std::vector<Leaf> leaves;
    std::vector<int> owners;
    for (const std::int32_t id : ids) {
      leaves.push_back({.expert = id});
      owners.push_back(static_cast<int>(random() % 3) * (trial % 2));  // every other time, all have one owner
    }
    const auto owner = [&](const Leaf& leaf) { return owners[static_cast<std::size_t>(&leaf - leaves.data())]; };
    MergeOrder order(64);
    const auto joined = [&](const std::vector<std::pair<std::int32_t, std::string>>& parts) {
      std::vector<std::string> waiting;
      for (std::size_t i = 0; i < parts.size(); ++i) {
        waiting.push_back(parts[i].second);
        int merges = order.merges_after(parts[i].first, i + 1 < parts.size() ? parts[i + 1].first : -1);
        for (; merges > 0; --merges) {
          const std::string right = waiting.back();
          waiting.pop_back();
          waiting.back() = "(" + waiting.back() + "+" + right + ")";
        }
      }
      EXPECT_EQ(waiting.size(), 1U);
      return waiting.front();
    };
    // Each owner sums its nodes, then the nodes are summed.
    std::vector<std::pair<std::int32_t, std::string>> nodes;
    int covered = 0;
    for_each_node(leaves, {0, static_cast<int>(leaves.size())}, owner, [&](Node node) {
      EXPECT_EQ(node.first, covered);
      covered = node.last;
      std::vector<std::pair<std::int32_t, std::string>> within;
      for (int i = node.first; i < node.last; ++i) {
        EXPECT_EQ(owner(leaves[static_cast<std::size_t>(i)]), owner(leaves[static_cast<std::size_t>(node.first)]));
        within.emplace_back(ids[static_cast<std::size_t>(i)], std::to_string(ids[static_cast<std::size_t>(i)]));
      }
      nodes.emplace_back(within.front().first, joined(within));
    });
    EXPECT_EQ(covered, static_cast<int>(leaves.size()));
    EXPECT_EQ(joined(nodes), form(ids));
    if (trial % 2 == 0) {
      EXPECT_EQ(nodes.size(), 1U);
    }
  }
}

}  // namespace
}  // namespace accord::expert
