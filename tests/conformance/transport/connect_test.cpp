// Connecting: ranks that arrive at different times or never, and the errors that are reported.
#include <gmock/gmock.h>

#include <algorithm>
#include <atomic>

#include "conformance/transport/ranks.hpp"
#include "conformance/transport/transport_suite.hpp"

namespace accord::transport {
namespace {

using testing::AnyOf;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr std::size_t kBytes = 4096;

class Connect : public TransportSuite {};
ACCORD_TEST_ALL_TRANSPORTS(Connect);

Deadline soon() { return Deadline::in(std::chrono::milliseconds(50)); }

Endpoint& endpoint(Group& group, Rank rank) { return *group[static_cast<std::size_t>(rank)].endpoint; }

TEST_P(Connect, descriptors_are_text_of_less_than_a_kibibyte) {
  const auto opened = transport().open({.rank = 99, .size = 100, .window_bytes = kBytes});
  ASSERT_TRUE(opened.ok()) << opened.status().to_string();
  const std::string descriptor = (*opened)->descriptor();
  EXPECT_LT(descriptor.size(), 1024u);
  EXPECT_FALSE(descriptor.empty());
  EXPECT_TRUE(std::all_of(descriptor.begin(), descriptor.end(), [](char c) { return c >= ' ' && c <= '~'; }));
}

TEST_P(Connect, ranks_may_connect_in_any_order) {
  std::vector<Rank> order = {0, 1, 2};
  do {
    Group group = open_group(transport(), 3, kBytes);
    std::atomic<int> started = 0;
    std::vector<Status> statuses(3);
    in_threads(3, [&](Rank thread) {
      const Rank rank = order[static_cast<std::size_t>(thread)];
      while (started.load() < thread) std::this_thread::yield();
      ++started;
      statuses[static_cast<std::size_t>(rank)] = connect_member(group, rank);
    });
    for (const Status& status : statuses) EXPECT_TRUE(status.ok()) << status.to_string();
  } while (std::next_permutation(order.begin(), order.end()));
}

// Ranks 0 and 1 connect to each other first and then to rank 2. Rank 2 connects to both in one call and has to wait.
TEST_P(Connect, peers_may_be_connected_by_several_calls) {
  Group group = open_group(transport(), 3, kBytes);
  const std::vector<std::vector<std::vector<Rank>>> calls = {{{1}, {2}}, {{0}, {2}}, {{0, 1}}};
  in_threads(3, [&](Rank me) {
    for (const std::vector<Rank>& call : calls[static_cast<std::size_t>(me)]) {
      std::vector<PeerDescriptor> peers;
      for (const Rank peer : call) peers.push_back(descriptor_of(group, peer));
      auto links = endpoint(group, me).connect(peers, patience());
      ASSERT_TRUE(links.ok()) << links.status().to_string();
      for (auto& link : *links) group[static_cast<std::size_t>(me)].links.push_back(std::move(link));
    }
  });
  for (const Member& member : group) EXPECT_EQ(member.links.size(), 2u);
}

TEST_P(Connect, a_timeout_names_the_missing_ranks) {
  Group group = open_group(transport(), 4, kBytes);
  std::vector<Status> statuses(4);
  in_threads(4, [&](Rank rank) {
    if (rank == 1 || rank == 3) return;
    statuses[static_cast<std::size_t>(rank)] =
        endpoint(group, rank).connect(peers_of(group, rank), Deadline::in(std::chrono::seconds(1))).status();
  });
  for (const Rank rank : {0, 2}) {
    const Status& status = statuses[static_cast<std::size_t>(rank)];
    EXPECT_EQ(status.code(), StatusCode::kTimeout) << status.to_string();
    EXPECT_THAT(status.ranks(), ElementsAre(1, 3)) << status.to_string();
    EXPECT_THAT(status.message(), HasSubstr("ranks 1 and 3"));
  }
}

TEST_P(Connect, a_closed_peer_is_lost_immediately) {
  for (const Rank stays : {0, 1}) {
    Group group = open_group(transport(), 2, kBytes);
    const std::vector<PeerDescriptor> peers = peers_of(group, stays);
    group[static_cast<std::size_t>(1 - stays)].endpoint.reset();
    const Status status = endpoint(group, stays).connect(peers, patience()).status();
    EXPECT_EQ(status.code(), StatusCode::kPeerLost) << status.to_string();
    EXPECT_THAT(status.ranks(), ElementsAre(1 - stays));
  }
}

TEST_P(Connect, a_peer_that_closes_during_connect_is_lost) {
  for (const Rank stays : {0, 1}) {
    Group group = open_group(transport(), 2, kBytes);
    const std::vector<PeerDescriptor> peers = peers_of(group, stays);
    std::atomic<bool> waits = false;
    std::thread other([&] {
      while (!waits.load()) std::this_thread::yield();
      // By now the rank is probably in connect(); the result is the same if it is not.
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      group[static_cast<std::size_t>(1 - stays)].endpoint.reset();
    });
    waits = true;
    const Status status = endpoint(group, stays).connect(peers, patience()).status();
    other.join();
    EXPECT_EQ(status.code(), StatusCode::kPeerLost) << status.to_string();
    EXPECT_THAT(status.ranks(), ElementsAre(1 - stays));
  }
}

// Rank 2 never arrives, so rank 1 fails although it has met rank 0. Rank 0 sees it leave, in connect() or afterwards.
TEST_P(Connect, peers_see_a_rank_leave_after_its_connect_failed) {
  Group group = open_group(transport(), 3, kBytes);
  auto links = Result<std::vector<std::unique_ptr<Link>>>(Status(StatusCode::kInternal, "not connected"));
  in_threads(2, [&](Rank rank) {
    if (rank == 0) {
      links = endpoint(group, 0).connect(std::vector{descriptor_of(group, 1)}, patience());
    } else {
      const Status status =
          endpoint(group, 1).connect(peers_of(group, 1), Deadline::in(std::chrono::seconds(1))).status();
      EXPECT_EQ(status.code(), StatusCode::kTimeout) << status.to_string();
      EXPECT_THAT(status.ranks(), ElementsAre(2));
      group[1].endpoint.reset();
    }
  });
  if (links.ok()) {
    EXPECT_EQ(links->front()->update_peer_state(), PeerState::kLeft);
  } else {
    EXPECT_EQ(links.status().code(), StatusCode::kPeerLost) << links.status().to_string();
    EXPECT_THAT(links.status().ranks(), ElementsAre(1));
  }
}

TEST_P(Connect, window_sizes_that_differ_are_a_mismatch_that_names_the_ranks) {
  Group group = open_group(transport(), 4, kBytes);
  for (const Rank rank : {1, 3}) {
    auto other = transport().open({.rank = rank, .size = 4, .window_bytes = kBytes + 1});
    ASSERT_TRUE(other.ok());
    group[static_cast<std::size_t>(rank)].endpoint = std::move(*other);
  }
  in_threads(4, [&](Rank rank) {
    const Status status = endpoint(group, rank).connect(peers_of(group, rank), soon()).status();
    EXPECT_EQ(status.code(), StatusCode::kMismatch) << status.to_string();
    EXPECT_EQ(status.ranks(), rank % 2 == 0 ? (std::vector<Rank>{1, 3}) : (std::vector<Rank>{0, 2}));
    EXPECT_THAT(status.message(), HasSubstr("4097"));
  });
}

TEST_P(Connect, invalid_peers_are_rejected) {
  Group group = open_group(transport(), 2, kBytes);
  const std::string mine = endpoint(group, 0).descriptor();
  const std::string other = endpoint(group, 1).descriptor();
  const std::vector<std::vector<PeerDescriptor>> wrong = {
      {{0, mine}}, {{2, other}}, {{-1, other}}, {{1, other}, {1, other}}, {{1, mine}},
  };
  for (const auto& peers : wrong) {
    const Status status = endpoint(group, 0).connect(peers, soon()).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status.to_string();
  }
}

TEST_P(Connect, a_peer_is_connected_once) {
  Group group = connected_group(transport(), 2, kBytes);
  const Status status = endpoint(group, 0).connect(peers_of(group, 0), soon()).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status.to_string();
  EXPECT_THAT(status.message(), HasSubstr("already"));
}

TEST_P(Connect, garbage_descriptors_are_rejected_and_the_rank_is_named) {
  Group group = open_group(transport(), 2, kBytes);
  const std::string name(transport().name());
  const std::vector<std::string> garbage = {
      "",
      " ",
      "nonsense",
      name,
      name + "/1",
      name + "/1 1 4096",
      name + "/1 1 4096  ",
      name + "/x 1 4096 a b",
      name + "/1 -1 4096 a b",
      name + "/1 99999999999 4096 a b",
      name + "/1 1 -4096 a b",
      name + "/1 1 99999999999999999999 a b",
      name + "/1 1 4096 a b c",
      endpoint(group, 1).descriptor() + " more",
      std::string(2000, 'x'),
      std::string("\0\xff\n\t", 4),
  };
  for (const std::string& descriptor : garbage) {
    const Status status = endpoint(group, 0).connect(std::vector<PeerDescriptor>{{1, descriptor}}, patience()).status();
    EXPECT_THAT(status.code(), AnyOf(StatusCode::kCorrupt, StatusCode::kMismatch))
        << '"' << descriptor << "\": " << status.to_string();
    EXPECT_THAT(status.ranks(), ElementsAre(1));
  }
}

TEST_P(Connect, a_descriptor_of_another_version_or_transport_is_a_mismatch) {
  Group group = open_group(transport(), 2, kBytes);
  const std::string name(transport().name());
  std::string newer = endpoint(group, 1).descriptor();
  newer.replace(0, name.size() + 2, name + "/9");
  const Status version = endpoint(group, 0).connect(std::vector<PeerDescriptor>{{1, newer}}, patience()).status();
  EXPECT_EQ(version.code(), StatusCode::kMismatch) << version.to_string();
  EXPECT_THAT(version.message(), HasSubstr("version 9"));
  for (Transport* other : transports()) {
    if (other == &transport()) continue;
    const auto opened = other->open({.rank = 1, .size = 2, .window_bytes = kBytes});
    if (!opened.ok()) continue;
    const std::vector<PeerDescriptor> peers = {{1, (*opened)->descriptor()}};
    const Status status = endpoint(group, 0).connect(peers, patience()).status();
    EXPECT_EQ(status.code(), StatusCode::kMismatch) << status.to_string();
    EXPECT_THAT(status.message(), HasSubstr(std::string(other->name())));
  }
}

// Any single changed byte in a descriptor gives an error, and never a link, a crash or a hang.
TEST_P(Connect, a_damaged_descriptor_never_results_in_a_link) {
  Group group = open_group(transport(), 2, kBytes);
  const std::string intact = endpoint(group, 1).descriptor();
  for (std::size_t at = 0; at < intact.size(); ++at) {
    for (const int bit : {0, 3, 6}) {
      std::string damaged = intact;
      damaged[at] = static_cast<char>(damaged[at] ^ (1 << bit));
      const std::vector<PeerDescriptor> peers = {{1, damaged}};
      auto fresh = transport().open({.rank = 0, .size = 2, .window_bytes = kBytes});
      ASSERT_TRUE(fresh.ok());
      const auto links = (*fresh)->connect(peers, Deadline::in(std::chrono::milliseconds(1)));
      EXPECT_FALSE(links.ok()) << damaged;
    }
  }
}

}  // namespace
}  // namespace accord::transport
