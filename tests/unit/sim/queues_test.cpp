#include "sim/queues.hpp"

#include <gtest/gtest.h>

#include <limits>
#include <utility>
#include <vector>

namespace accord::sim {
namespace {

using Ids = std::vector<std::int32_t>;

/// The flows in the order in which they end, with the times.
std::vector<std::pair<FlowId, double>> ends_of(Queues& queues) {
  std::vector<std::pair<FlowId, double>> ends;
  while (true) {
    const double now = queues.next_event();
    if (now == std::numeric_limits<double>::infinity()) return ends;
    if (const auto ended = queues.advance()) ends.emplace_back(*ended, now);
  }
}

TEST(Queues, serve_one_flow_after_the_other) {
  Queues queues({2.0});
  const RouteId route = queues.add_route(Ids{0});
  const FlowId first = queues.start(0, 4, route), second = queues.start(1, 2, route), third = queues.start(9, 2, route);
  const std::vector<std::pair<FlowId, double>> expected = {{first, 2}, {second, 3}, {third, 10}};
  EXPECT_EQ(ends_of(queues), expected);
  EXPECT_DOUBLE_EQ(queues.carried()[0], 8);
}

TEST(Queues, let_bytes_go_on_while_the_rest_follows) {
  Queues queues({1.0, 4.0, 2.0});
  const FlowId alone = queues.start(0, 8, queues.add_route(Ids{0, 1, 2}));
  EXPECT_EQ(ends_of(queues), (std::vector<std::pair<FlowId, double>>{{alone, 8}}));  // as over the slowest link
}

// The second flow waits for the first one on link 1, and delays nobody on link 0, which it has left.
TEST(Queues, delay_a_flow_where_it_meets_another_one) {
  Queues queues({1.0, 1.0, 1.0});
  const FlowId first = queues.start(0, 4, queues.add_route(Ids{1}));
  const FlowId second = queues.start(1, 2, queues.add_route(Ids{0, 1}));
  const FlowId third = queues.start(2, 1, queues.add_route(Ids{0, 2}));
  const std::vector<std::pair<FlowId, double>> expected = {{first, 4}, {third, 4}, {second, 6}};
  EXPECT_EQ(ends_of(queues), expected);
}

TEST(Queues, use_ids_again) {
  Queues queues({1.0});
  const RouteId route = queues.add_route(Ids{0});
  const FlowId first = queues.start(0, 1, route);
  ends_of(queues);
  EXPECT_EQ(queues.start(5, 1, route), first);
}

}  // namespace
}  // namespace accord::sim
