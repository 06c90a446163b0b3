// Plans for ranks on several hosts, where no rank reads the memory of another host.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "plan/algorithms.hpp"
#include "plan/selector.hpp"
#include "plan/verifier.hpp"
#include "sanitized.hpp"
#include "unit/plan/interpreter.hpp"
#include "unit/plan/plans_for_tests.hpp"

namespace accord::plan {
namespace {

using accord::testing::kSanitized;
using testing::has_root;

/// Rank r runs on host `hosts[r]`.
topology::Topology on_hosts(const std::vector<int>& hosts) {
  std::vector<topology::Place> places;
  for (std::size_t rank = 0; rank < hosts.size(); ++rank) {
    const int id = static_cast<int>(rank);
    places.push_back({.host = "host-" + std::to_string(hosts[rank]),
                      .process = id + 1,
                      .cpus = {id},
                      .numa_nodes = {0},
                      .cores = 1,
                      .core_ids = {id}});
  }
  return topology::Topology(std::move(places));
}

/// The hosts of the ranks, such as "0 0 1 2".
const std::vector<std::vector<int>> kShapes =
    kSanitized ? std::vector<std::vector<int>>{{0, 1}, {0, 0, 1, 1}, {0, 0, 0, 1, 1, 2}}
               : std::vector<std::vector<int>>{{0, 1},
                                               {0, 1, 2},
                                               {0, 0, 1},
                                               {0, 1, 1},
                                               {0, 0, 1, 1},
                                               {0, 1, 0, 1},
                                               {0, 1, 2, 3},
                                               {0, 0, 0, 1},
                                               {0, 0, 0, 1, 1, 2},
                                               {2, 1, 0, 1, 2, 1},
                                               {0, 0, 0, 0, 1, 1, 1},
                                               {0, 0, 0, 0, 1, 1, 1, 1},
                                               {0, 0, 1, 1, 2, 2, 3, 3},
                                               {0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2},
                                               {0, 1, 2, 3, 4, 5, 6, 7, 8},
                                               {0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8}};

/// Returns the plans that the default table may choose there and those of all algorithms that span hosts, with the
/// last rank as root.
std::vector<std::pair<const AlgorithmEntry*, Plan>> plans_between(const topology::Topology& topology) {
  const Selector selector = *Selector::create("");
  std::vector<SelectorRow> rows = selector.rows();
  for (const AlgorithmEntry& entry : algorithms())
    if (entry.spans_hosts) rows.push_back({.collective = entry.collective, .to_bytes = 1, .algorithm = &entry});
  std::vector<std::pair<const AlgorithmEntry*, Plan>> plans;
  for (const SelectorRow& row : rows) {
    if (row.collective == Collective::kSendRecv && topology.size() != 2) continue;
    const bool is_known =
        std::any_of(plans.begin(), plans.end(), [&](const auto& p) { return p.first == row.algorithm; });
    if (is_known) continue;
    const Rank root = has_root(row.collective) ? topology.size() - 1 : 0;
    const SelectorCall call{.collective = row.collective, .bytes = row.from_bytes, .root = root};
    if (selector.judge(row, call, topology) != RowVerdict::kMatches) continue;
    const Result<Plan> plan = row.algorithm->make(topology, {.collective = row.collective, .root = root});
    EXPECT_TRUE(plan.ok()) << plan.status().to_string();
    if (plan.ok()) plans.emplace_back(row.algorithm, *plan);
  }
  return plans;
}

/// Returns a step that the executor could not run because it reads, or adds in, the memory of another host. Multicast
/// exists inside a host only.
std::optional<std::string> step_across_hosts(const Plan& plan, const topology::Topology& topology) {
  for (Rank rank = 0; rank < plan.size; ++rank) {
    for (const Lane& lane : plan.programs[static_cast<std::size_t>(rank)].lanes) {
      for (const Step& step : lane.steps) {
        const auto by_switch = [](const Chunk& chunk) { return chunk.space == Space::kMulticast; };
        const auto far = [&](const Chunk& chunk) {
          return by_switch(chunk) || topology.host_of(chunk.rank) != topology.host_of(rank);
        };
        const bool reads = std::any_of(step.sources.begin(), step.sources.end(), far);
        const bool writes = std::any_of(step.destinations.begin(), step.destinations.end(), far);
        const bool publishes = std::any_of(step.destinations.begin(), step.destinations.end(), by_switch);
        if (reads || publishes || (writes && step.kind == StepKind::kReduce))
          return "rank " + std::to_string(rank) + ": " + to_string(step);
      }
    }
  }
  return std::nullopt;
}

TEST(Hosts, plans_between_hosts_never_read_the_memory_of_another_host) {
  for (const auto& shape : kShapes) {
    const topology::Topology topology = on_hosts(shape);
    for (const auto& [entry, plan] : plans_between(topology))
      EXPECT_EQ(step_across_hosts(plan, topology), std::nullopt) << to_string(plan);
  }
}

TEST(Hosts, an_algorithm_spans_hosts_if_and_only_if_its_row_says_so) {
  for (const AlgorithmEntry& entry : algorithms()) {
    bool crosses = false;
    for (const auto& shape : kShapes) {
      const topology::Topology topology = on_hosts(shape);
      if (entry.collective == Collective::kSendRecv && topology.size() != 2) continue;
      if (entry.fits != nullptr && !entry.fits(topology)) continue;
      const Rank root = has_root(entry.collective) ? topology.size() - 1 : 0;
      const Result<Plan> plan = entry.make(topology, {.collective = entry.collective, .root = root});
      ASSERT_TRUE(plan.ok()) << plan.status().to_string();
      crosses = crosses || step_across_hosts(*plan, topology).has_value();
    }
    EXPECT_EQ(crosses, !entry.spans_hosts) << to_string(entry.collective) << " " << entry.name;
  }
}

TEST(Hosts, hierarchical_all_reduce_requires_hosts_that_are_subtrees_of_the_canonical_tree) {
  const Selector selector = *Selector::create("");
  const auto chosen = [&](const std::vector<int>& shape, ReduceOp op = ReduceOp::kSum) {
    const auto choice = selector.choose({Collective::kAllReduce, 1 << 20, 0, op}, on_hosts(shape));
    return std::string(choice.ok() ? choice->algorithm->name : "none");
  };
  EXPECT_EQ(chosen({0, 0, 1, 1}), "hierarchical");
  EXPECT_EQ(chosen({0, 0, 0, 0, 1, 1, 1}), "hierarchical");
  EXPECT_EQ(chosen({0, 0, 1}), "hierarchical");
  EXPECT_EQ(chosen({0, 0, 0, 1, 1, 1}), "two_shot");  // the tree splits 4 + 2
  EXPECT_EQ(chosen({0, 1, 1}), "two_shot");           // it splits 2 + 1
  EXPECT_EQ(chosen({0, 1, 0, 1}), "two_shot");
  EXPECT_EQ(chosen({0, 1}), "two_shot");  // no ranks share a host
  EXPECT_EQ(chosen({0, 0}), "two_shot");
  EXPECT_EQ(chosen({0, 0, 1, 1}, ReduceOp::kAvg), "two_shot");  // divides where all inputs are combined
}

TEST(Hosts, large_messages_use_hierarchical_plans_where_hosts_have_several_ranks) {
  const Selector selector = *Selector::create("");
  const auto chosen = [&](Collective collective, std::size_t bytes, const std::vector<int>& shape) {
    const auto choice = selector.choose({collective, bytes, 0, ReduceOp::kSum}, on_hosts(shape));
    return std::string(choice.ok() ? choice->algorithm->name : "none");
  };
  for (const Collective collective : {Collective::kBroadcast, Collective::kReduce, Collective::kReduceScatter}) {
    EXPECT_EQ(chosen(collective, 1 << 20, {0, 0, 1, 1}), "hierarchical");
    EXPECT_NE(chosen(collective, 1 << 20, {0, 1}), "hierarchical");
    EXPECT_NE(chosen(collective, 1 << 10, {0, 0, 1, 1}), "hierarchical");
  }
  EXPECT_EQ(chosen(Collective::kBroadcast, 1 << 20, {0, 1, 0, 1}), "hierarchical");  // no sum, so no tree
  EXPECT_EQ(chosen(Collective::kReduce, 1 << 20, {0, 1, 0, 1}), "two_shot");
}

TEST(Hosts, hierarchical_plans_send_to_each_host_once) {
  const topology::Topology topology = on_hosts({0, 0, 1, 1, 2, 2});
  const auto far_puts = [&](Collective collective, int host) {
    const AlgorithmEntry* entry = *algorithm_by_name(collective, "hierarchical");
    const Plan plan = *entry->make(topology, {.collective = collective});
    int puts = 0;
    for (const Rank rank : topology.ranks_of_host(host))
      for (const Lane& lane : plan.programs[static_cast<std::size_t>(rank)].lanes)
        for (const Step& step : lane.steps)
          for (const Chunk& to : step.destinations) puts += topology.host_of(to.rank) != host;
    return std::pair(puts, plan.input_chunks);
  };
  using ::testing::Pair;
  // Root 0 has 2 columns of 2 blocks: its host sends all, each other host passes on the half that it was given.
  EXPECT_THAT(far_puts(Collective::kBroadcast, 0), Pair(4, 4));
  EXPECT_THAT(far_puts(Collective::kBroadcast, 1), Pair(2, 4));
  EXPECT_THAT(far_puts(Collective::kReduce, 0), Pair(0, 2));
  EXPECT_THAT(far_puts(Collective::kReduce, 2), Pair(2, 2));
  EXPECT_THAT(far_puts(Collective::kReduceScatter, 1), Pair(4, 6));  // one sum for each of the 4 ranks elsewhere
  EXPECT_THAT(far_puts(Collective::kAllGather, 1), Pair(4, 1));      // two parts to two hosts
  EXPECT_THAT(far_puts(Collective::kAllToAll, 1), Pair(8, 6));       // every part is for one rank
}

TEST(Hosts, plans_between_hosts_are_verified) {
  for (const auto& shape : kShapes) {
    const topology::Topology topology = on_hosts(shape);
    for (const auto& [entry, plan] : plans_between(topology)) {
      for (const Aliasing aliasing : {Aliasing::kOutOfPlace, Aliasing::kInPlace}) {
        const Status status = verify(plan, aliasing);
        EXPECT_TRUE(status.ok()) << ::testing::PrintToString(shape) << ": " << status.to_string();
      }
    }
  }
}

TEST(Hosts, plans_between_hosts_match_the_reference) {
  std::mt19937 random(5);
  for (const auto& shape : kShapes) {
    const topology::Topology topology = on_hosts(shape);
    for (const auto& [entry, plan] : plans_between(topology)) {
      for (const std::size_t count : {std::size_t{0}, std::size_t{1}, std::size_t{97}, std::size_t{257}}) {
        for (const std::size_t slice : {count / 7 + 1, count + 1}) {
          const auto problem =
              testing::run_randomly(plan, {.count = count, .slice = slice, .combine = testing::mix}, random);
          ASSERT_EQ(problem, std::nullopt) << to_string(plan) << " on " << ::testing::PrintToString(shape);
        }
      }
    }
  }
}

TEST(Hosts, every_rank_builds_only_its_own_program) {
  for (const auto& shape : kShapes) {
    const topology::Topology topology = on_hosts(shape);
    for (const auto& [entry, whole] : plans_between(topology)) {
      for (Rank rank = 0; rank < whole.size; ++rank) {
        const auto own =
            entry->make(topology, {.collective = entry->collective, .root = whole.root, .only_rank = rank});
        ASSERT_TRUE(own.ok()) << own.status().to_string();
        EXPECT_EQ(own->programs[static_cast<std::size_t>(rank)], whole.programs[static_cast<std::size_t>(rank)]);
      }
    }
  }
}

}  // namespace
}  // namespace accord::plan
