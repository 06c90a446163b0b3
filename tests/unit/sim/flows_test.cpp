// The expected times follow from the definition of max-min fairness.
#include "sim/flows.hpp"

#include <gtest/gtest.h>

#include <limits>
#include <random>
#include <vector>

namespace accord::sim {
namespace {

using Ids = std::vector<std::int32_t>;
constexpr double kUnlimited = std::numeric_limits<double>::infinity();

/// Flows, each with a route of its own.
class FlowsForTests : public Flows {
 public:
  using Flows::Flows;
  FlowId start_on(double now, double bytes, const Ids& links, double limit = kUnlimited) {
    if (limit != kUnlimited) return start_limited(now, bytes, links, limit);
    return start(now, bytes, add_route(links));
  }
};

TEST(Flows, that_share_a_link_get_equal_parts_until_one_ends) {
  FlowsForTests flows({1.0});
  const FlowId small = flows.start_on(0, 1, Ids{0});
  const FlowId large = flows.start_on(0, 3, Ids{0});
  EXPECT_DOUBLE_EQ(flows.next_event(), 2);
  EXPECT_EQ(flows.advance(), small);
  EXPECT_DOUBLE_EQ(flows.next_event(), 4);
  EXPECT_EQ(flows.advance(), large);
  EXPECT_EQ(flows.next_event(), std::numeric_limits<double>::infinity());
  EXPECT_DOUBLE_EQ(flows.carried()[0], 4);
}

TEST(Flows, over_two_links_leave_to_others_what_they_cannot_use) {
  FlowsForTests flows({1.0, 2.0});
  const FlowId both = flows.start_on(0, 8, Ids{0, 1});
  const FlowId first = flows.start_on(0, 8, Ids{0});
  const FlowId second = flows.start_on(0, 8, Ids{1});
  EXPECT_GT(flows.next_event(), 0);
  EXPECT_DOUBLE_EQ(flows.rate(both), 0.5);
  EXPECT_DOUBLE_EQ(flows.rate(first), 0.5);
  EXPECT_DOUBLE_EQ(flows.rate(second), 1.5);
}

TEST(Flows, with_a_limit_leave_the_rest) {
  FlowsForTests flows({1.0});
  flows.start_on(0, 1, Ids{0}, 0.25);
  const FlowId other = flows.start_on(0, 3, Ids{0});
  EXPECT_DOUBLE_EQ(flows.next_event(), 4);  // both
  EXPECT_DOUBLE_EQ(flows.rate(other), 0.75);
}

TEST(Flows, that_start_later_slow_down_those_under_way) {
  FlowsForTests flows({2.0});
  flows.start_on(0, 4, Ids{0});
  EXPECT_DOUBLE_EQ(flows.next_event(), 2);
  flows.start_on(1, 4, Ids{0});
  EXPECT_DOUBLE_EQ(flows.next_event(), 3);  // 2 bytes are left at 1
  flows.advance();
  EXPECT_DOUBLE_EQ(flows.next_event(), 4);
}

TEST(Flows, of_one_route_share_its_rate_and_end_by_their_bytes) {
  FlowsForTests flows({1.0, 1.0});
  const RouteId route = flows.add_route(Ids{0});
  const FlowId first = flows.start(0, 2, route);
  EXPECT_DOUBLE_EQ(flows.next_event(), 2);
  const FlowId second = flows.start(1, 0.25, route);
  EXPECT_DOUBLE_EQ(flows.next_event(), 1.5);
  EXPECT_EQ(flows.advance(), second);
  EXPECT_DOUBLE_EQ(flows.next_event(), 2.25);
  EXPECT_EQ(flows.advance(), first);
  flows.start(5, 1, route);
  flows.start(5, 1, route);
  EXPECT_DOUBLE_EQ(flows.next_event(), 7);
  flows.advance();
  EXPECT_DOUBLE_EQ(flows.next_event(), 7);
  flows.advance();
  EXPECT_EQ(flows.next_event(), kUnlimited);
}

// Two links that look the same, each of which has a flow on its way in and one on its way out.
TEST(Flows, over_a_link_twice_use_it_twice) {
  FlowsForTests flows({1.0});
  flows.start_on(0, 1, Ids{0, 0});
  EXPECT_DOUBLE_EQ(flows.next_event(), 2);
  flows.start_on(0, 1, Ids{0});
  EXPECT_DOUBLE_EQ(flows.next_event(), 3);
}

TEST(Flows, without_links_have_their_limit) {
  FlowsForTests flows(std::vector<double>{});
  flows.start_on(1, 6, Ids{}, 2);
  EXPECT_DOUBLE_EQ(flows.next_event(), 4);
}

// Each flow has a link that is full and on which no flow is faster.
TEST(Flows, of_random_networks_are_max_min_fair) {
  std::mt19937 random(1);
  const auto below = [&](int bound) { return static_cast<int>(random() % static_cast<unsigned>(bound)); };
  for (int trial = 0; trial < 300; ++trial) {
    std::vector<double> capacities(static_cast<std::size_t>(1 + below(6)));
    for (double& one : capacities) one = 1 + below(5);
    FlowsForTests flows(capacities);
    std::vector<Ids> routes;
    std::vector<FlowId> ids;
    const int count = 1 + below(8);
    for (int i = 0; i < count; ++i) {
      Ids route;
      for (std::size_t link = 0; link < capacities.size(); ++link)
        if (below(2) == 0) route.push_back(static_cast<std::int32_t>(link));
      if (route.empty()) route.push_back(0);
      ids.push_back(flows.start_on(0, 1000, route));
      routes.push_back(route);
      if (below(2) == 0) flows.next_event();  // rates in between must not matter
    }
    flows.next_event();
    std::vector<double> used(capacities.size()), fastest(capacities.size());
    for (std::size_t i = 0; i < ids.size(); ++i)
      for (const std::int32_t link : routes[i]) {
        used[static_cast<std::size_t>(link)] += flows.rate(ids[i]);
        fastest[static_cast<std::size_t>(link)] = std::max(fastest[static_cast<std::size_t>(link)], flows.rate(ids[i]));
      }
    for (std::size_t link = 0; link < used.size(); ++link) EXPECT_LE(used[link], capacities[link] * (1 + 1e-9));
    for (std::size_t i = 0; i < ids.size(); ++i) {
      bool has_bottleneck = false;
      for (const std::int32_t one : routes[i]) {
        const auto link = static_cast<std::size_t>(one);
        has_bottleneck |=
            used[link] >= capacities[link] * (1 - 1e-9) && flows.rate(ids[i]) >= fastest[link] * (1 - 1e-9);
      }
      EXPECT_TRUE(has_bottleneck) << "trial " << trial << ", flow " << i;
    }
  }
}

}  // namespace
}  // namespace accord::sim
