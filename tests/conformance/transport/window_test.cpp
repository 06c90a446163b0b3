// Windows and links: data that is put arrives, in order and within bounds.
#include <gmock/gmock.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <fstream>

#include "conformance/transport/ranks.hpp"
#include "conformance/transport/transport_suite.hpp"

namespace accord::transport {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class Window : public TransportSuite {};
ACCORD_TEST_ALL_TRANSPORTS(Window);

std::uint64_t load(const std::byte* window, std::size_t offset) {
  auto* word = reinterpret_cast<std::uint64_t*>(const_cast<std::byte*>(window) + offset);
  return std::atomic_ref<std::uint64_t>(*word).load(std::memory_order_acquire);
}

// Waits until the word is at least `value`; returns false if that does not happen in time.
bool wait_for(const std::byte* window, std::size_t offset, std::uint64_t value) {
  const Deadline deadline = patience();
  while (load(window, offset) < value) {
    if (deadline.passed()) return false;
    std::this_thread::yield();
  }
  return true;
}

std::size_t resident_bytes() {
  std::ifstream statm("/proc/self/statm");
  std::size_t total = 0;
  std::size_t resident = 0;
  statm >> total >> resident;
  return resident * static_cast<std::size_t>(::getpagesize());
}

// Bytes that count up modulo 251 from a start that depends on `seed`, so that rank and position can be distinguished.
std::vector<std::byte> pattern(int seed, std::size_t bytes) {
  std::vector<std::byte> made(bytes);
  for (std::size_t i = 0; i < bytes; ++i)
    made[i] = static_cast<std::byte>((static_cast<std::size_t>(seed) * 37 + i) % 251);
  return made;
}

TEST_P(Window, is_zeroed_page_aligned_and_of_the_requested_size) {
  for (const std::size_t bytes : {std::size_t{1}, std::size_t{4096}, std::size_t{1000003}}) {
    const auto endpoint = transport().open({.rank = 0, .size = 1, .window_bytes = bytes});
    ASSERT_TRUE(endpoint.ok()) << endpoint.status().to_string();
    const std::span<std::byte> window = (*endpoint)->window();
    EXPECT_EQ(window.size(), bytes);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(window.data()) % static_cast<std::size_t>(::getpagesize()), 0u);
    EXPECT_TRUE(std::all_of(window.begin(), window.end(), [](std::byte b) { return b == std::byte{0}; }));
  }
}

TEST_P(Window, uses_memory_only_for_touched_pages) {
  const std::size_t before = resident_bytes();
  Group group = connected_group(transport(), 2, std::size_t{1} << 30);
  std::memset(group[0].window(), 1, std::size_t{1} << 20);
  EXPECT_LT(resident_bytes(), before + (std::size_t{64} << 20));
}

TEST_P(Window, a_group_of_one_has_no_links) {
  const Group group = connected_group(transport(), 1, 4096);
  EXPECT_EQ(group[0].links.size(), 1u);
  EXPECT_EQ(group[0].links[0], nullptr);
}

TEST_P(Window, links_are_in_the_order_of_the_peers) {
  Group group = open_group(transport(), 3, 4096);
  std::vector<std::vector<Rank>> got(3);
  in_threads(3, [&](Rank rank) {
    std::vector<PeerDescriptor> peers = peers_of(group, rank);
    std::reverse(peers.begin(), peers.end());
    const auto links = group[static_cast<std::size_t>(rank)].endpoint->connect(peers, patience());
    ASSERT_TRUE(links.ok()) << links.status().to_string();
    for (const auto& link : *links) got[static_cast<std::size_t>(rank)].push_back(link->peer());
  });
  EXPECT_THAT(got[0], ElementsAre(2, 1));
  EXPECT_THAT(got[1], ElementsAre(2, 0));
  EXPECT_THAT(got[2], ElementsAre(1, 0));
}

TEST_P(Window, is_the_memory_that_peers_map) {
  Group group = connected_group(transport(), 3, 8192);
  for (Rank owner = 0; owner < 3; ++owner) {
    for (Rank peer = 0; peer < 3; ++peer) {
      if (peer == owner) continue;
      std::byte* mapped = group[static_cast<std::size_t>(peer)].to(owner).mapped();
      if (mapped == nullptr) GTEST_SKIP() << "windows are not mapped over " << transport().name();
      const auto value = static_cast<std::byte>(1 + owner * 3 + peer);
      mapped[8191] = value;
      EXPECT_EQ(group[static_cast<std::size_t>(owner)].window()[8191], value);
      group[static_cast<std::size_t>(owner)].window()[0] = value;
      EXPECT_EQ(mapped[0], value);
    }
  }
}

class WindowOfRanks : public testing::TestWithParam<std::tuple<Transport*, int>> {};
INSTANTIATE_TEST_SUITE_P(All, WindowOfRanks,
                         testing::Combine(testing::ValuesIn(transports()), testing::Values(2, 3, 8)),
                         [](const auto& test) {
                           return std::string(std::get<0>(test.param)->name()) +
                                  std::to_string(std::get<1>(test.param));
                         });

// Every rank puts a block into every window and signals 1. A rank that has seen all blocks of its window signals 2.
// Then every rank gets the blocks of all ranks from all windows.
TEST_P(WindowOfRanks, holds_the_data_of_every_peer_after_its_signal) {
  const auto [transport, size] = GetParam();
  if (!transport->viable().ok()) GTEST_SKIP() << transport->viable().message();
  constexpr std::size_t kBlock = 10000;
  const auto flag = [](Rank rank) { return static_cast<std::size_t>(rank) * 64; };
  const auto block = [size = size](Rank rank) {
    return static_cast<std::size_t>(size) * 64 + static_cast<std::size_t>(rank) * kBlock;
  };
  Group group = connected_group(*transport, size, block(size));
  in_threads(size, [&, size = size](Rank me) {
    const Member& self = group[static_cast<std::size_t>(me)];
    for (Rank peer = 0; peer < size; ++peer) {
      if (peer == me) continue;
      ASSERT_TRUE(self.to(peer).put(pattern(me * size + peer, kBlock), block(me)).ok());
      ASSERT_TRUE(self.to(peer).signal(flag(me), 1).ok());
    }
    for (Rank peer = 0; peer < size; ++peer) {
      if (peer == me) continue;
      ASSERT_TRUE(wait_for(self.window(), flag(peer), 1)) << "no signal from rank " << peer;
      const std::vector<std::byte> expected = pattern(peer * size + me, kBlock);
      EXPECT_EQ(std::memcmp(self.window() + block(peer), expected.data(), kBlock), 0);
    }
    for (Rank peer = 0; peer < size; ++peer) {
      if (peer == me) continue;
      ASSERT_TRUE(self.to(peer).signal(flag(me), 2).ok());
    }
    for (Rank owner = 0; owner < size; ++owner) {
      if (owner == me) continue;
      ASSERT_TRUE(wait_for(self.window(), flag(owner), 2)) << "no second signal from rank " << owner;
      for (Rank writer = 0; writer < size; ++writer) {
        if (writer == owner) continue;
        std::vector<std::byte> got(kBlock);
        ASSERT_TRUE(self.to(owner).get(block(writer), got).ok());
        EXPECT_EQ(got, pattern(writer * size + owner, kBlock));
      }
    }
  });
}

// Two ranks pass messages of changing sizes through one slot each, so that a word that is misplaced or too early is
// noticed immediately.
TEST_P(Window, puts_are_visible_before_the_signal_that_follows_them_ten_thousand_times) {
  constexpr std::uint64_t kRounds = 10000;
  constexpr std::size_t kWords = 512;
  constexpr std::size_t kSlot = 64;
  Group group = connected_group(transport(), 2, kSlot + kWords * 8);
  in_threads(2, [&](Rank me) {
    const Member& self = group[static_cast<std::size_t>(me)];
    Link& link = self.to(1 - me);
    std::vector<std::uint64_t> words(kWords);
    for (std::uint64_t round = 1; round <= kRounds; ++round) {
      const std::size_t count = 1 + round * 7919 % kWords;
      std::fill_n(words.begin(), count, round);
      ASSERT_TRUE(link.put(std::as_bytes(std::span(words).first(count)), kSlot).ok());
      ASSERT_TRUE(link.signal(0, round).ok());
      ASSERT_TRUE(wait_for(self.window(), 0, round)) << "round " << round;
      std::vector<std::uint64_t> got(count);
      std::memcpy(got.data(), self.window() + kSlot, count * 8);
      ASSERT_TRUE(std::all_of(got.begin(), got.end(), [round](std::uint64_t word) { return word == round; }))
          << "round " << round;
      // The peer may overwrite the slot only after this signal.
      ASSERT_TRUE(link.signal(8, round).ok());
      ASSERT_TRUE(wait_for(self.window(), 8, round)) << "round " << round;
    }
  });
}

TEST_P(Window, rejects_bytes_that_do_not_fit_and_names_the_rank) {
  Group group = connected_group(transport(), 2, 4096);
  Link& link = group[0].to(1);
  std::vector<std::byte> bytes(64);
  EXPECT_TRUE(link.put(bytes, 4096 - 64).ok());
  EXPECT_TRUE(link.get(4096 - 64, bytes).ok());
  EXPECT_TRUE(link.put({}, 4096).ok());
  for (const std::size_t offset : {std::size_t{4096 - 63}, std::size_t{4097}, SIZE_MAX, SIZE_MAX - 63}) {
    for (const Status& status : {link.put(bytes, offset), link.get(offset, bytes)}) {
      EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << offset;
      EXPECT_THAT(status.message(), HasSubstr("rank 1"));
    }
  }
}

TEST_P(Window, rejects_signals_that_are_unaligned_or_out_of_bounds) {
  Group group = connected_group(transport(), 2, 4096);
  Link& link = group[1].to(0);
  EXPECT_TRUE(link.signal(4088, 7).ok());
  EXPECT_TRUE(wait_for(group[0].window(), 4088, 7));
  EXPECT_EQ(load(group[0].window(), 4088), 7u);
  EXPECT_EQ(link.signal(4, 1).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(link.signal(4096, 1).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(link.signal(SIZE_MAX - 7, 1).code(), StatusCode::kInvalidArgument);
}

TEST_P(Window, rejects_invalid_requests) {
  for (const EndpointRequest& request : {EndpointRequest{.rank = 2, .size = 2, .window_bytes = 1},
                                         EndpointRequest{.rank = -1, .size = 2, .window_bytes = 1},
                                         EndpointRequest{.rank = 0, .size = 0, .window_bytes = 1},
                                         EndpointRequest{.rank = 0, .size = 1, .window_bytes = 0}}) {
    const auto endpoint = transport().open(request);
    ASSERT_FALSE(endpoint.ok());
    EXPECT_EQ(endpoint.status().code(), StatusCode::kInvalidArgument) << endpoint.status().to_string();
  }
}

TEST_P(Window, too_large_for_any_machine_is_an_error) {
  const auto endpoint = transport().open({.rank = 0, .size = 1, .window_bytes = SIZE_MAX / 2});
  ASSERT_FALSE(endpoint.ok());
  EXPECT_EQ(endpoint.status().code(), StatusCode::kResourceExhausted) << endpoint.status().to_string();
}

}  // namespace
}  // namespace accord::transport
