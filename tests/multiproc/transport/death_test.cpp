// How peers end, as seen from other processes: killed, exited, left, forked.
#include <gmock/gmock.h>
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>

#include "base/fd.hpp"
#include "multiproc/transport/board.hpp"
#include "ranks/process_ranks.hpp"

namespace accord::transport {
namespace {

using accord::testing::ProcessRanks;
using ::testing::Each;
using ::testing::ElementsAre;

bool has_pidfd() {
  const UniqueFd fd(static_cast<int>(::syscall(SYS_pidfd_open, ::getpid(), 0)));
  return fd.valid();
}

// Forks a child that keeps its inherited descriptors open until it is killed or its time is over.
pid_t fork_holder() {
  const pid_t child = ::fork();
  if (child != 0) return child;
  ::alarm(120);
  for (;;) ::pause();
}

TEST(ShmDeath, a_killed_peer_is_lost_within_a_second) {
  const SharedBoard board = make_board();
  ProcessRanks ranks(3, [&](Rank rank) {
    Member self;
    const Status joined = join_group(self, *board, rank, 3, kWindowBytes);
    EXPECT_TRUE(joined.ok()) << joined.to_string();
    self.endpoint->window()[100] = std::byte{42};
    board->reach(rank, 2);
    if (rank == 1) ::pause();
    EXPECT_TRUE(board->await(1, 3));
    EXPECT_EQ(await_change(self.to(1), std::chrono::seconds(1)), PeerState::kLost);
    EXPECT_EQ(self.to(1).mapped()[100], std::byte{42});
    EXPECT_TRUE(self.to(1).signal(0, 1).ok());
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

TEST(ShmDeath, every_group_is_notified_of_a_death_whichever_polls_first) {
  const std::array<SharedBoard, 2> boards = {make_board(), make_board()};
  ProcessRanks ranks(2, [&](Rank rank) {
    std::array<Member, 2> groups;
    for (const int g : {0, 1}) {
      const Status joined = join_group(groups[g], *boards[g], rank, 2, kWindowBytes);
      EXPECT_TRUE(joined.ok()) << joined.to_string();
    }
    if (rank == 1) ::_exit(0);
    for (Member& self : groups) EXPECT_EQ(await_change(self.to(1), std::chrono::seconds(60)), PeerState::kLost);
    return outcome();
  });
  EXPECT_THAT(ranks.wait_all(patience()), Each(0));
}

TEST(ShmDeath, a_peer_that_exits_without_leaving_is_lost) {
  const SharedBoard board = make_board();
  ProcessRanks ranks(2, [&](Rank rank) {
    Member self;
    const Status joined = join_group(self, *board, rank, 2, kWindowBytes);
    EXPECT_TRUE(joined.ok()) << joined.to_string();
    if (rank == 1) ::_exit(0);
    EXPECT_EQ(await_change(self.to(1), std::chrono::seconds(60)), PeerState::kLost);
    return outcome();
  });
  EXPECT_THAT(ranks.wait_all(patience()), Each(0));
}

// The process ends right after the farewell, so that one poll may see both.
TEST(ShmDeath, a_peer_that_leaves_and_exits_immediately_has_left) {
  for (int round = 0; round < 20; ++round) {
    const SharedBoard board = make_board();
    ProcessRanks ranks(2, [&](Rank rank) {
      Member self;
      const Status joined = join_group(self, *board, rank, 2, kWindowBytes);
      EXPECT_TRUE(joined.ok()) << joined.to_string();
      if (rank == 1) return outcome();
      if (round % 2 == 0) ::usleep(5000);  // so that the process has probably ended before the first poll
      EXPECT_EQ(await_change(self.to(1), std::chrono::seconds(60)), PeerState::kLeft);
      return outcome();
    });
    EXPECT_THAT(ranks.wait_all(patience()), Each(0));
  }
}

TEST(ShmDeath, a_forked_child_that_exits_does_not_disturb_others) {
  const SharedBoard board = make_board();
  ProcessRanks ranks(2, [&](Rank rank) {
    Member self;
    const Status joined = join_group(self, *board, rank, 2, kWindowBytes);
    EXPECT_TRUE(joined.ok()) << joined.to_string();
    if (rank == 1) {
      for (const bool destroys : {false, true}) {
        const pid_t child = ::fork();
        if (child == 0) {
          self.to(0).update_peer_state();
          const auto again = self.endpoint->connect({}, patience());
          if (again.ok() || again.status().code() != StatusCode::kWrongState) ::_exit(1);
          if (destroys) self = {};
          ::_exit(0);
        }
        int status = -1;
        EXPECT_EQ(::waitpid(child, &status, 0), child);
        EXPECT_EQ(status, 0);
      }
      board->reach(1, 2);
      EXPECT_TRUE(board->await(0, 2));
      return outcome();
    }
    EXPECT_TRUE(board->await(1, 2));
    EXPECT_EQ(await_change(self.to(1), std::chrono::milliseconds(50)), PeerState::kAlive);
    EXPECT_TRUE(self.to(1).signal(0, 5).ok());
    board->reach(0, 2);
    EXPECT_EQ(await_change(self.to(1), std::chrono::seconds(60)), PeerState::kLeft);
    return outcome();
  });
  EXPECT_THAT(ranks.wait_all(patience()), Each(0));
}

// A child that queries an inherited link must not consume the notification for which its parent waits.
TEST(ShmDeath, a_forked_child_that_queries_state_leaves_its_parents_notification) {
  const SharedBoard board = make_board();
  ProcessRanks ranks(2, [&](Rank rank) {
    Member self;
    const Status joined = join_group(self, *board, rank, 2, kWindowBytes);
    EXPECT_TRUE(joined.ok()) << joined.to_string();
    board->reach(rank, 2);
    EXPECT_TRUE(board->await(1 - rank, 2));
    if (rank == 1) return outcome();  // leaves
    pollfd entry = {self.to(1).liveness_fd(), POLLIN, 0};
    EXPECT_EQ(::poll(&entry, 1, 60000), 1);
    const pid_t child = ::fork();
    if (child == 0) {
      self.to(1).update_peer_state();
      ::_exit(0);
    }
    int status = -1;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    EXPECT_EQ(self.to(1).update_peer_state(), PeerState::kLeft);
    return outcome();
  });
  EXPECT_THAT(ranks.wait_all(patience()), Each(0));
}

TEST(ShmDeath, a_forked_child_that_holds_the_sockets_does_not_hide_its_parents_death) {
  if (!has_pidfd()) GTEST_SKIP() << "this system has no pidfd_open";
  const SharedBoard board = make_board();
  ProcessRanks ranks(2, [&](Rank rank) {
    Member self;
    const Status joined = join_group(self, *board, rank, 2, kWindowBytes);
    EXPECT_TRUE(joined.ok()) << joined.to_string();
    if (rank == 1) {
      board->value[1] = static_cast<std::uint64_t>(fork_holder());
      board->reach(1, 2);
      for (;;) ::pause();
    }
    EXPECT_TRUE(board->await(1, 3));
    EXPECT_EQ(await_change(self.to(1), std::chrono::seconds(1)), PeerState::kLost);
    return outcome();
  });
  ASSERT_TRUE(board->await(1, 2));
  ranks.kill(1, SIGKILL);
  board->reach(1, 3);
  EXPECT_THAT(ranks.wait_all(patience()), ElementsAre(0, 128 + SIGKILL));
  EXPECT_EQ(::kill(static_cast<pid_t>(board->value[1]), SIGKILL), 0);
}

// The peer publishes its descriptor and dies, either while the other rank waits for it or before.
class ShmDeathInTheMeeting : public ::testing::TestWithParam<std::tuple<Rank, bool, bool>> {};
INSTANTIATE_TEST_SUITE_P(All, ShmDeathInTheMeeting,
                         ::testing::Combine(::testing::Values(0, 1), ::testing::Bool(), ::testing::Bool()));

TEST_P(ShmDeathInTheMeeting, a_peer_that_dies_before_it_connects_is_lost_within_a_second) {
  const auto [dies, with_child, before] = GetParam();
  if (with_child && !has_pidfd()) GTEST_SKIP() << "this system has no pidfd_open";
  const SharedBoard board = make_board();
  ProcessRanks ranks(2, [&, dies = dies, with_child = with_child, before = before](Rank rank) {
    Member self;
    const Status opened = open_member(self, *board, rank, 2, kWindowBytes);
    EXPECT_TRUE(opened.ok()) << opened.to_string();
    if (rank == dies) {
      if (with_child) board->value[0] = static_cast<std::uint64_t>(fork_holder());
      board->reach(rank, 2);
      for (;;) ::pause();
    }
    EXPECT_TRUE(board->await(dies, before ? 3 : 2));
    board->reach(rank, 2);
    const Status status = connect_member(self, *board, rank, 2);
    const auto ended = static_cast<std::uint64_t>(Clock::now().time_since_epoch().count());
    EXPECT_EQ(status.code(), StatusCode::kPeerLost) << status.to_string();
    EXPECT_THAT(status.ranks(), ElementsAre(dies));
    EXPECT_TRUE(before || ended - board->value[1] < 1000000000u);
    return outcome();
  });
  ASSERT_TRUE(board->await(dies, 2));
  if (!before) {
    ASSERT_TRUE(board->await(1 - dies, 2));
    ::usleep(20000);  // probably in connect() by now; the result is the same if not
  }
  board->value[1] = static_cast<std::uint64_t>(Clock::now().time_since_epoch().count());
  ranks.kill(dies, SIGKILL);
  EXPECT_EQ(ranks.wait(dies, patience()), 128 + SIGKILL);
  board->reach(dies, 3);
  EXPECT_EQ(ranks.wait(1 - dies, patience()), 0);
  EXPECT_TRUE(!with_child || ::kill(static_cast<pid_t>(board->value[0]), SIGKILL) == 0);
}

}  // namespace
}  // namespace accord::transport
