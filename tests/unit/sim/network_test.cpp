#include "sim/network.hpp"

#include <gtest/gtest.h>

#include "unit/sim/machines_for_tests.hpp"

namespace accord::sim {
namespace {

NetworkModel model_of(NetworkShape shape, int hosts_per_switch = 0, int nics = 1) {
  NetworkModel model = testing::machine_of(2).network;
  model.shape = shape;
  model.hosts_per_switch = hosts_per_switch;
  model.nics = nics;
  model.global_bytes_per_second = 3e9;
  return model;
}

std::vector<std::string> names_of(const Network& network, const Route& route) {
  std::vector<std::string> names;
  for (const LinkId link : route.links) names.push_back(network.links()[static_cast<std::size_t>(link)].name);
  return names;
}

using Names = std::vector<std::string>;

TEST(Networks, of_one_switch_have_the_links_of_two_nics) {
  const Network network(model_of(NetworkShape::kCrossbar, 0, 2), 3);
  const Route route = network.route(2, 1, 0, 0);
  EXPECT_EQ(names_of(network, route), (Names{"host 2, NIC 1, out", "host 0, NIC 0, in"}));
  EXPECT_DOUBLE_EQ(route.latency, 1e-5);
}

TEST(Networks, with_leaves_pass_spines_between_two_leaves_only) {
  NetworkModel model = model_of(NetworkShape::kFatTree, 4);
  model.oversubscription = 2;
  const Network network(model, 8);
  EXPECT_EQ(network.route(0, 0, 3, 0).links.size(), 2U);
  const Route far = network.route(0, 0, 4, 0);
  EXPECT_EQ(names_of(network, far), (Names{"host 0, NIC 0, out", "leaf 0, up", "leaf 1, down", "host 4, NIC 0, in"}));
  EXPECT_DOUBLE_EQ(far.latency, 1e-5 + 2e-6);
  EXPECT_DOUBLE_EQ(network.links()[static_cast<std::size_t>(far.links[1])].bytes_per_second, 4 * 1e9 / 2);
}

TEST(Networks, with_rails_pass_spines_between_rails) {
  const Network network(model_of(NetworkShape::kRailOptimized, 4, 2), 4);
  EXPECT_EQ(network.route(0, 1, 3, 1).links.size(), 2U);
  EXPECT_EQ(names_of(network, network.route(0, 0, 3, 1))[1], "leaf of a rail 0, up");
  EXPECT_EQ(names_of(network, network.route(0, 0, 3, 1))[2], "leaf of a rail 1, down");
}

TEST(Networks, of_groups_have_a_link_between_each_two) {
  const Network network(model_of(NetworkShape::kDragonfly, 2), 6);
  EXPECT_EQ(network.route(0, 0, 1, 0).links.size(), 2U);
  const Route far = network.route(1, 0, 4, 0);
  EXPECT_EQ(names_of(network, far)[1], "group 0 to group 2");
  EXPECT_DOUBLE_EQ(far.latency, 1e-5 + 1e-6);
  EXPECT_DOUBLE_EQ(network.links()[static_cast<std::size_t>(far.links[1])].bytes_per_second, 3e9);
}

TEST(Networks, of_a_torus_take_the_shorter_way_round_in_each_dimension) {
  NetworkModel model = model_of(NetworkShape::kTorus);
  model.torus = {4, 3};
  const Network network(model, 12);
  const Route route = network.route(0, 0, 3 + 4 * 2, 0);  // (0, 0) to (3, 2)
  EXPECT_EQ(names_of(network, route), (Names{"host 0, NIC 0, out", "host 0, dimension 0, previous",
                                             "host 3, dimension 1, previous", "host 11, NIC 0, in"}));
  EXPECT_DOUBLE_EQ(route.latency, 1e-5 + 2e-6);
  EXPECT_EQ(network.route(0, 0, 2, 0).links.size(), 4U);
}

// Moving both ends by the same number of hosts moves each link to one for which the same one stands.
TEST(Networks, look_the_same_to_hosts_that_are_shifted) {
  NetworkModel torus = model_of(NetworkShape::kTorus);
  torus.torus = {3, 2, 4};
  const auto check = [](const NetworkModel& model, int hosts, int expected_period) {
    const int period = symmetric_hosts(model, hosts);
    EXPECT_EQ(period, expected_period);
    const Network network(model, hosts);
    const auto seen = [&](int from, int to, int nic) {
      Route route = network.route(from, nic, to, 0);
      for (LinkId& link : route.links) link = network.representative(link, period);
      return route;
    };
    for (int from = 0; from < hosts; ++from)
      for (int to = 0; to < hosts; ++to) {
        if (from == to) continue;
        const int nic = model.nics - 1;
        const Route here = seen(from, to, nic);
        const Route there = seen((from + period) % hosts, (to + period) % hosts, nic);
        EXPECT_EQ(here.links, there.links) << to_string(model.shape) << ", from " << from << " to " << to;
        EXPECT_DOUBLE_EQ(here.latency, there.latency);
        for (const LinkId link : here.links) {
          EXPECT_EQ(network.representative(link, period), link);
          EXPECT_EQ(network.links()[static_cast<std::size_t>(link)].bytes_per_second,
                    network.links()[static_cast<std::size_t>(network.representative(link, period))].bytes_per_second);
        }
      }
  };
  check(model_of(NetworkShape::kCrossbar, 0, 2), 5, 1);
  check(model_of(NetworkShape::kFatTree, 3), 12, 3);
  check(model_of(NetworkShape::kFatTree, 3), 11, 11);
  check(model_of(NetworkShape::kRailOptimized, 2, 2), 8, 2);
  check(model_of(NetworkShape::kDragonfly, 2), 10, 2);
  check(torus, 24, 6);
  check(torus, 23, 23);
}

}  // namespace
}  // namespace accord::sim
