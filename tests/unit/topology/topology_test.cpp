#include "topology/topology.hpp"

#include <gmock/gmock.h>

namespace accord::topology {
namespace {

using testing::ElementsAre;

// A rank on `host` that may use `cpus`, of which two make a core: 0 and 1, 2 and 3, ...
Place on(std::string host, std::vector<int> cpus) {
  Place place{.host = std::move(host), .process = 1, .cpus = std::move(cpus), .numa_nodes = {0}};
  for (const int cpu : place.cpus) {
    const int core = cpu / 2 * 2;
    if (place.core_ids.empty() || place.core_ids.back() != core) place.core_ids.push_back(core);
  }
  place.cores = static_cast<int>(place.core_ids.size());
  return place;
}

// The same place where it is unknown which processors share a core.
Place without_core_ids(Place place) {
  place.core_ids.clear();
  return place;
}

TEST(Topology, numbers_hosts_by_their_lowest_rank) {
  const Topology topology({on("b", {0}), on("a", {0}), on("b", {1}), on("c", {0}), on("a", {1})});
  EXPECT_EQ(topology.size(), 5);
  EXPECT_THAT(topology.ranks(), ElementsAre(0, 1, 2, 3, 4));
  EXPECT_EQ(topology.host_count(), 3);
  EXPECT_THAT(topology.ranks_of_host(0), ElementsAre(0, 2));
  EXPECT_THAT(topology.ranks_of_host(1), ElementsAre(1, 4));
  EXPECT_THAT(topology.ranks_of_host(2), ElementsAre(3));
  for (const Rank rank : topology.ranks()) {
    EXPECT_THAT(topology.ranks_of_host(topology.host_of(rank)), testing::Contains(rank));
  }
  EXPECT_EQ(topology.place(3).host, "c");
}

TEST(Topology, keeps_its_hosts_when_it_is_copied_or_moved) {
  auto first = std::make_unique<Topology>(std::vector<Place>{on("a", {0}), on("b", {0})});
  const Topology copy = *first;
  const Topology moved = std::move(*first);
  first.reset();
  EXPECT_EQ(copy.host_of(1), 1);
  EXPECT_EQ(moved.place(1).host, "b");
}

TEST(Topology, ranks_that_share_all_processors_are_oversubscribed_beyond_the_number_of_cores) {
  const Place four_threads_two_cores = on("a", {0, 1, 2, 3});
  EXPECT_FALSE(Topology({four_threads_two_cores, four_threads_two_cores}).oversubscribed());
  EXPECT_TRUE(Topology({four_threads_two_cores, four_threads_two_cores, four_threads_two_cores}).oversubscribed());
  const Place unknown = without_core_ids(four_threads_two_cores);
  EXPECT_FALSE(Topology({unknown, unknown}).oversubscribed());
  EXPECT_TRUE(Topology({unknown, unknown, unknown}).oversubscribed());
}

TEST(Topology, ranks_bound_to_their_own_cores_are_not_oversubscribed) {
  EXPECT_FALSE(Topology({on("a", {0, 1}), on("a", {2, 3})}).oversubscribed());
  EXPECT_FALSE(Topology({without_core_ids(on("a", {0, 1})), without_core_ids(on("a", {2, 3}))}).oversubscribed());
}

TEST(Topology, ranks_bound_to_two_threads_of_one_core_are_oversubscribed) {
  EXPECT_TRUE(Topology({on("a", {0}), on("a", {1})}).oversubscribed());
}

TEST(Topology, ranks_whose_processors_overlap_count_them_once) {
  EXPECT_FALSE(Topology({on("a", {0, 2}), on("a", {2, 4}), on("a", {0, 4})}).oversubscribed());
  EXPECT_TRUE(Topology({on("a", {0, 2}), on("a", {2, 0}), on("a", {0})}).oversubscribed());
}

TEST(Topology, each_host_counts_by_itself) {
  EXPECT_FALSE(Topology({on("a", {0}), on("b", {0})}).oversubscribed());
  EXPECT_TRUE(Topology({on("a", {0}), on("b", {0}), on("b", {0})}).oversubscribed());
}

TEST(Topology, uniform_is_one_host_with_a_core_for_each_rank) {
  for (const int size : {1, 2, 7, 64}) {
    const Topology topology = Topology::uniform(size);
    EXPECT_EQ(topology.size(), size);
    EXPECT_EQ(topology.host_count(), 1);
    EXPECT_EQ(topology.ranks_of_host(0), topology.ranks());
    EXPECT_FALSE(topology.oversubscribed());
  }
}

TEST(Topology, ranks_may_read_each_others_memory_if_all_of_a_host_report_the_same_reader) {
  const auto place_on = [](const std::string& host, const std::string& reader) {
    Place place = on(host, {0, 1, 2, 3});
    place.reader = reader;
    return place;
  };
  EXPECT_TRUE(Topology({place_on("a", "me"), place_on("a", "me"), place_on("a", "me")}).readable());
  EXPECT_FALSE(Topology({place_on("a", "me"), place_on("a", "me"), place_on("a", "you")}).readable());
  EXPECT_FALSE(Topology({place_on("a", ""), place_on("a", "")}).readable());
  EXPECT_FALSE(Topology({place_on("a", "me"), place_on("b", "me")}).readable());
  EXPECT_FALSE(Topology({place_on("a", "me"), place_on("a", "me")}).without_shared_memory().readable());
}

}  // namespace
}  // namespace accord::topology
