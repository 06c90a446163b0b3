// How endpoints and links end: in any order, noticed by the peers, and leaving nothing behind.
#include <gmock/gmock.h>
#include <poll.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <filesystem>

#include "conformance/transport/ranks.hpp"
#include "conformance/transport/transport_suite.hpp"

namespace accord::transport {
namespace {

constexpr std::size_t kWindowBytes = 16384;

class Leaving : public TransportSuite {};
ACCORD_TEST_ALL_TRANSPORTS(Leaving);

bool has_notification(const Link& link) {
  pollfd entry = {link.liveness_fd(), POLLIN, 0};  // poll() ignores -1
  return ::poll(&entry, 1, 0) == 1;
}

// Waits until the state of `link`'s peer changes and returns it. The descriptor, if there is one, wakes the wait.
PeerState await_change(Link& link) {
  const Deadline deadline = patience();
  while (link.peer_state() == PeerState::kAlive && !deadline.passed()) {
    if (link.liveness_fd() >= 0) {
      pollfd entry = {link.liveness_fd(), POLLIN, 0};
      ::poll(&entry, 1, deadline.poll_milliseconds());
    }
    link.update_peer_state();
  }
  return link.peer_state();
}

// Waits until the word is not 0 and returns it. A signal takes time to arrive where windows are not mapped.
std::uint64_t await_word(std::byte* window, std::size_t offset) {
  const std::atomic_ref<std::uint64_t> word(*reinterpret_cast<std::uint64_t*>(window + offset));
  const Deadline deadline = patience();
  while (word.load(std::memory_order_acquire) == 0 && !deadline.passed()) std::this_thread::yield();
  return word.load(std::memory_order_acquire);
}

std::size_t open_descriptors() {
  const std::filesystem::directory_iterator entries("/proc/self/fd");
  return static_cast<std::size_t>(std::distance(begin(entries), end(entries)));
}

TEST_P(Leaving, peers_are_alive_until_they_leave) {
  Group group = connected_group(transport(), 3, kWindowBytes);
  for (const Rank peer : {1, 2}) {
    EXPECT_EQ(group[0].to(peer).peer_state(), PeerState::kAlive);
    EXPECT_EQ(group[0].to(peer).update_peer_state(), PeerState::kAlive);
    EXPECT_FALSE(has_notification(group[0].to(peer)));
  }
  group[1].endpoint.reset();
  EXPECT_EQ(await_change(group[0].to(1)), PeerState::kLeft);
  EXPECT_EQ(await_change(group[2].to(1)), PeerState::kLeft);
  EXPECT_EQ(group[0].to(2).update_peer_state(), PeerState::kAlive);
}

TEST_P(Leaving, a_peer_that_left_keeps_its_state_and_its_descriptor_stops_notifying) {
  Group group = connected_group(transport(), 2, kWindowBytes);
  group[1].links.clear();
  group[1].endpoint.reset();
  Link& link = group[0].to(1);
  ASSERT_EQ(await_change(link), PeerState::kLeft);
  EXPECT_EQ(link.update_peer_state(), PeerState::kLeft);
  EXPECT_FALSE(has_notification(link));
}

// The endpoint represents the rank: dropping a link is not leaving.
TEST_P(Leaving, a_rank_that_drops_its_links_has_not_left) {
  Group group = connected_group(transport(), 2, kWindowBytes);
  group[1].links.clear();
  EXPECT_EQ(group[0].to(1).update_peer_state(), PeerState::kAlive);
}

TEST_P(Leaving, the_window_of_a_peer_that_left_can_still_be_used_where_it_is_mapped) {
  Group group = connected_group(transport(), 2, kWindowBytes);
  std::memset(group[1].window(), 0x5a, kWindowBytes);
  group[1].links.clear();
  group[1].endpoint.reset();
  Link& link = group[0].to(1);
  ASSERT_EQ(await_change(link), PeerState::kLeft);
  std::vector<std::byte> got(kWindowBytes);
  if (link.mapped() == nullptr) {  // the window vanished with the peer
    for (const Status& status : {link.get(0, got), link.put(got, 0), link.signal(8, 1)}) {
      EXPECT_EQ(status.code(), StatusCode::kPeerLost) << status.to_string();
      EXPECT_EQ(status.ranks(), std::vector<Rank>{1});
    }
    return;
  }
  ASSERT_TRUE(link.get(0, got).ok());
  EXPECT_TRUE(std::all_of(got.begin(), got.end(), [](std::byte b) { return b == std::byte{0x5a}; }));
  EXPECT_TRUE(link.put(got, 0).ok());
  EXPECT_TRUE(link.signal(8, 1).ok());
  EXPECT_EQ(link.mapped()[kWindowBytes - 1], std::byte{0x5a});
}

// A group of two has four things to destroy: two endpoints and two links.
TEST_P(Leaving, any_order_of_destruction_is_safe) {
  std::vector<int> order = {0, 1, 2, 3};
  do {
    Group group = connected_group(transport(), 2, kWindowBytes);
    for (const int object : order) {
      Member& member = group[static_cast<std::size_t>(object % 2)];
      if (object < 2) {
        member.endpoint.reset();
      } else {
        member.links.clear();
      }
      for (Member& left : group) {
        if (left.endpoint != nullptr) std::memset(left.window(), 1, kWindowBytes);
        for (auto& link : left.links) {
          if (link == nullptr) continue;
          if (group[static_cast<std::size_t>(link->peer())].endpoint != nullptr) {
            EXPECT_EQ(link->update_peer_state(), PeerState::kAlive);
          } else {
            EXPECT_EQ(await_change(*link), PeerState::kLeft);
          }
          const bool still_there = link->mapped() != nullptr || link->peer_state() == PeerState::kAlive;
          EXPECT_EQ(link->put(std::vector<std::byte>(kWindowBytes), 0).ok(), still_there);
        }
      }
    }
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST_P(Leaving, all_descriptors_are_closed) {
  { const Group warm_up = connected_group(transport(), 4, kWindowBytes); }
  const std::size_t before = open_descriptors();
  {
    const Group group = connected_group(transport(), 4, kWindowBytes);
    EXPECT_GE(open_descriptors(), before);
  }
  EXPECT_EQ(open_descriptors(), before);
  { const Group unconnected = open_group(transport(), 4, kWindowBytes); }
  EXPECT_EQ(open_descriptors(), before);
}

TEST_P(Leaving, many_groups_are_open_simultaneously) {
  constexpr int kGroups = 64;
  constexpr int kRanks = 4;
  rlimit limit = {};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  limit.rlim_cur = limit.rlim_max;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
  if (limit.rlim_cur < 4096) GTEST_SKIP() << "only " << limit.rlim_cur << " descriptors";
  const std::size_t before = open_descriptors();
  {
    std::vector<Group> groups;
    for (int g = 0; g < kGroups; ++g) groups.push_back(open_group(transport(), kRanks, kWindowBytes));
    in_threads(kRanks, [&](Rank rank) {
      for (Group& group : groups) {
        const Status status = connect_member(group, rank);
        ASSERT_TRUE(status.ok()) << status.to_string();
      }
    });
    // Data written to one group's windows does not appear in another's.
    for (std::size_t g = 0; g < groups.size(); ++g) {
      for (Rank peer = 1; peer < kRanks; ++peer) ASSERT_TRUE(groups[g][0].to(peer).signal(0, g + 1).ok());
    }
    for (std::size_t g = 0; g < groups.size(); ++g) {
      for (std::size_t rank = 1; rank < kRanks; ++rank) {
        EXPECT_EQ(await_word(groups[g][rank].window(), 0), g + 1);
      }
    }
    groups.erase(groups.begin(), groups.begin() + kGroups / 2);
    for (Group& group : groups) EXPECT_EQ(group[3].to(0).update_peer_state(), PeerState::kAlive);
  }
  EXPECT_EQ(open_descriptors(), before);
}

}  // namespace
}  // namespace accord::transport
