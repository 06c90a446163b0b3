// Transport ucx between processes that only UCX can connect, over TCP here: delivery of data, and how peers end.
#include <gmock/gmock.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>

#include "multiproc/transport/board.hpp"
#include "ranks/process_ranks.hpp"

namespace accord::transport {
namespace {

using accord::testing::ProcessRanks;
using ::testing::Each;
using ::testing::ElementsAre;

constexpr std::size_t kLargeWindowBytes = std::size_t{4} << 20;
constexpr std::size_t kFlag = 0;
constexpr std::size_t kData = 4096;

/// Skips the tests in builds without the transport and on machines without UCX.
class Ucx : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto ucx = transport_by_name("ucx");
    if (!ucx.ok()) GTEST_SKIP() << "this build has no transport ucx";
    if (const Status viable = (*ucx)->viable(); !viable.ok()) GTEST_SKIP() << viable.message();
  }
  static Transport& ucx() { return **transport_by_name("ucx"); }
};

std::uint64_t load(const Member& self, std::size_t offset) {
  auto* word = reinterpret_cast<std::uint64_t*>(self.endpoint->window().data() + offset);
  return std::atomic_ref<std::uint64_t>(*word).load(std::memory_order_acquire);
}

std::vector<std::byte> pattern(int seed, std::size_t bytes) {
  std::vector<std::byte> made(bytes);
  for (std::size_t i = 0; i < bytes; ++i) made[i] = static_cast<std::byte>((i * 7 + i / 251 + seed) % 256);
  return made;
}

// The receiver does nothing for the transfer: it sleeps until the word has arrived.
TEST_F(Ucx, megabytes_arrive_before_the_signal_at_a_rank_that_does_not_poll) {
  const SharedBoard board = make_board();
  ProcessRanks ranks(2, [&](Rank rank) {
    Member self;
    const Status joined = join_group(self, *board, rank, 2, kLargeWindowBytes, ucx());
    EXPECT_TRUE(joined.ok()) << joined.to_string();
    const std::size_t bytes = kLargeWindowBytes - kData;
    Link& link = self.to(1 - rank);
    for (std::uint64_t round = 1; round <= 5; ++round) {
      const auto mine = pattern(static_cast<int>(10 * round + rank), bytes);
      EXPECT_TRUE(link.put(mine, kData).ok());
      EXPECT_TRUE(link.signal(kFlag, round).ok());
      EXPECT_TRUE(wait_until([&] { return load(self, kFlag) >= round; }));
      const auto theirs = pattern(static_cast<int>(10 * round + 1 - rank), bytes);
      EXPECT_EQ(std::memcmp(self.endpoint->window().data() + kData, theirs.data(), bytes), 0);
      std::vector<std::byte> read(bytes);
      EXPECT_TRUE(link.get(kData, read).ok());
      EXPECT_EQ(read, mine);
      EXPECT_TRUE(link.signal(kFlag + 8, round).ok());
      EXPECT_TRUE(wait_until([&] { return load(self, kFlag + 8) >= round; }));
    }
    return outcome();
  });
  EXPECT_THAT(ranks.wait_all(patience()), Each(0));
}

TEST_F(Ucx, packets_carry_their_flag_word_after_the_data_of_each_line) {
  const SharedBoard board = make_board();
  ProcessRanks ranks(2, [&](Rank rank) {
    Member self;
    const Status joined = join_group(self, *board, rank, 2, kLargeWindowBytes, ucx());
    EXPECT_TRUE(joined.ok()) << joined.to_string();
    const auto data = pattern(3, 130);
    if (rank == 0) {
      RemoteWriter* remote = self.to(1).remote();
      remote->write_packets(data, kData, {.data_bytes = 56, .word_at = 56, .stride = 64, .count = 4}, 77);
      remote->flush();
    } else {
      EXPECT_TRUE(wait_until([&] { return load(self, kData + 3 * 64 + 56) == 77; }));
      const std::byte* window = self.endpoint->window().data() + kData;
      for (std::size_t line = 0; line < 4; ++line) {
        EXPECT_EQ(load(self, kData + line * 64 + 56), 77u);
        const std::size_t here = std::min<std::size_t>(56, data.size() - std::min(data.size(), line * 56));
        EXPECT_EQ(std::memcmp(window + line * 64, data.data() + line * 56, here), 0);
      }
    }
    board->reach(rank, 2);
    EXPECT_TRUE(board->await(1 - rank, 2));
    return outcome();
  });
  EXPECT_THAT(ranks.wait_all(patience()), Each(0));
}

TEST_F(Ucx, a_killed_peer_is_lost_within_a_second) {
  const SharedBoard board = make_board();
  ProcessRanks ranks(3, [&](Rank rank) {
    Member self;
    const Status joined = join_group(self, *board, rank, 3, kLargeWindowBytes, ucx());
    EXPECT_TRUE(joined.ok()) << joined.to_string();
    board->reach(rank, 2);
    if (rank == 1) ::pause();
    EXPECT_TRUE(board->await(1, 3));
    EXPECT_EQ(await_change(self.to(1), std::chrono::seconds(1)), PeerState::kLost);
    const Status put = self.to(1).put(pattern(0, 8), kData);
    EXPECT_EQ(put.code(), StatusCode::kPeerLost) << put.to_string();
    EXPECT_THAT(put.ranks(), ElementsAre(1));
    EXPECT_EQ(self.to(2 - rank).update_peer_state(), PeerState::kAlive);
    board->reach(rank, 3);
    EXPECT_TRUE(board->await(2 - rank, 3));
    return outcome();
  });
  for (const Rank rank : {0, 1, 2}) ASSERT_TRUE(board->await(rank, 2));
  ranks.kill(1, SIGKILL);
  board->reach(1, 3);
  EXPECT_THAT(ranks.wait_all(patience()), ElementsAre(0, 128 + SIGKILL, 0));
}

// By the time a rank is seen to have left, its last signal has arrived.
TEST_F(Ucx, data_written_before_a_rank_left_has_arrived) {
  for (int round = 0; round < 10; ++round) {
    const SharedBoard board = make_board();
    ProcessRanks ranks(2, [&](Rank rank) {
      Member self;
      const Status joined = join_group(self, *board, rank, 2, kLargeWindowBytes, ucx());
      EXPECT_TRUE(joined.ok()) << joined.to_string();
      if (rank == 1) {
        EXPECT_TRUE(self.to(0).put(pattern(1, kLargeWindowBytes - kData), kData).ok());
        EXPECT_TRUE(self.to(0).signal(kFlag, 1).ok());
        return outcome();
      }
      EXPECT_EQ(await_change(self.to(1), std::chrono::seconds(60)), PeerState::kLeft);
      EXPECT_EQ(load(self, kFlag), 1u);
      return outcome();
    });
    EXPECT_THAT(ranks.wait_all(patience()), Each(0));
  }
}

// A child that survives the killed rank holds none of its connections.
TEST_F(Ucx, a_killed_peer_is_lost_even_if_its_child_survives) {
  const SharedBoard board = make_board();
  ProcessRanks ranks(2, [&](Rank rank) {
    Member self;
    const Status joined = join_group(self, *board, rank, 2, kLargeWindowBytes, ucx());
    EXPECT_TRUE(joined.ok()) << joined.to_string();
    if (rank == 1) {
      const pid_t child = ::fork();
      if (child == 0) {
        ::alarm(60);
        for (;;) ::pause();
      }
      board->value[1] = static_cast<std::uint64_t>(child);
      board->reach(1, 2);
      ::pause();
    }
    EXPECT_TRUE(board->await(1, 3));
    EXPECT_EQ(await_change(self.to(1), std::chrono::seconds(1)), PeerState::kLost);
    return outcome();
  });
  ASSERT_TRUE(board->await(1, 2));
  ranks.kill(1, SIGKILL);
  board->reach(1, 3);
  EXPECT_THAT(ranks.wait_all(patience()), ElementsAre(0, 128 + SIGKILL));
  ::kill(static_cast<pid_t>(board->value[1].load()), SIGKILL);
}

TEST_F(Ucx, a_forked_child_cannot_use_it_and_does_not_disturb_others) {
  const SharedBoard board = make_board();
  ProcessRanks ranks(2, [&](Rank rank) {
    Member self;
    const Status joined = join_group(self, *board, rank, 2, kLargeWindowBytes, ucx());
    EXPECT_TRUE(joined.ok()) << joined.to_string();
    if (rank == 1) {
      const pid_t child = ::fork();
      if (child == 0) {
        const bool refused = ucx().viable().code() == StatusCode::kUnsupported &&
                             self.endpoint->connect({}, patience()).status().code() == StatusCode::kWrongState;
        self = {};
        ::_exit(refused ? 0 : 1);
      }
      int status = -1;
      EXPECT_EQ(::waitpid(child, &status, 0), child);
      EXPECT_EQ(status, 0);
      EXPECT_TRUE(self.to(0).signal(kFlag, 1).ok());
    } else {
      EXPECT_TRUE(wait_until([&] { return load(self, kFlag) == 1; }));
      EXPECT_EQ(self.to(1).update_peer_state(), PeerState::kAlive);
    }
    board->reach(rank, 2);
    EXPECT_TRUE(board->await(1 - rank, 2));
    return outcome();
  });
  EXPECT_THAT(ranks.wait_all(patience()), Each(0));
}

}  // namespace
}  // namespace accord::transport
