// The resources that groups of processes take from the system and leave behind, and what happens when the system
// refuses.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>

#include "multiproc/transport/board.hpp"
#include "ranks/open_descriptors.hpp"
#include "ranks/process_ranks.hpp"

namespace accord::transport {
namespace {

namespace fs = std::filesystem;
using accord::testing::open_descriptors;
using accord::testing::ProcessRanks;
using ::testing::AnyOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Returns the inodes of the windows that a process ("self", or a number) has mapped.
std::set<std::uint64_t> mapped_windows(const std::string& process) {
  std::set<std::uint64_t> inodes;
  std::ifstream maps("/proc/" + process + "/maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.find("memfd:accord") == std::string::npos) continue;
    std::istringstream words(line);
    std::string range, rights, offset, device;
    std::uint64_t inode = 0;
    words >> range >> rights >> offset >> device >> inode;
    inodes.insert(inode);
  }
  return inodes;
}

std::set<std::uint64_t> windows_mapped_by_any_process() {
  std::set<std::uint64_t> inodes;
  for (const fs::directory_entry& entry : fs::directory_iterator("/proc")) {
    const std::string name = entry.path().filename().string();
    if (!std::all_of(name.begin(), name.end(), [](char c) { return c >= '0' && c <= '9'; })) continue;
    inodes.merge(mapped_windows(name));
  }
  return inodes;
}

bool is_bound(const std::string& socket_name) {
  std::ifstream sockets("/proc/net/unix");
  for (std::string line; std::getline(sockets, line);) {
    if (line.find(socket_name) != std::string::npos) return true;
  }
  return false;
}

// From here on, this process and its children get `error` from system call `number`. If `argument` is not negative,
// only calls with that first argument fail.
void refuse(int number, int error, int argument = -1) {
  const auto when_other = static_cast<unsigned char>(argument < 0 ? 0 : 1);
  std::vector<sock_filter> program = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<unsigned>(number), 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<unsigned>(argument), 0, when_other),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | static_cast<unsigned>(error)),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog filter = {static_cast<unsigned short>(program.size()), program.data()};
  ASSERT_EQ(::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
  ASSERT_EQ(::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter), 0);
}

// Lets this process open exactly `more` more descriptors.
void allow_descriptors(std::size_t more) {
  int fd = 0;
  for (std::size_t left = more; left > 0 || ::fcntl(fd, F_GETFD) >= 0; ++fd) {
    if (::fcntl(fd, F_GETFD) < 0) --left;
  }
  rlimit limit = {};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  limit.rlim_cur = static_cast<rlim_t>(fd);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
}

TEST(ShmResources, sixty_four_processes_connect_and_signal_each_other) {
  constexpr int kRanks = 64;
  const SharedBoard board = make_board();
  ProcessRanks ranks(kRanks, [&](Rank rank) {
    Member self;
    const Status joined = join_group(self, *board, rank, kRanks, kWindowBytes);
    EXPECT_TRUE(joined.ok()) << joined.to_string();
    if (!joined.ok()) return 1;
    for (Rank peer = 0; peer < kRanks; ++peer) {
      if (peer == rank) continue;
      EXPECT_TRUE(self.to(peer).signal(static_cast<std::size_t>(rank) * 8, static_cast<std::uint64_t>(rank) + 1).ok());
    }
    auto* words = reinterpret_cast<std::uint64_t*>(self.endpoint->window().data());
    for (Rank peer = 0; peer < kRanks; ++peer) {
      if (peer == rank) continue;
      const std::atomic_ref<std::uint64_t> word(words[peer]);
      EXPECT_TRUE(wait_until([&] { return word.load(std::memory_order_acquire) != 0; })) << "from rank " << peer;
      EXPECT_EQ(word.load(), static_cast<std::uint64_t>(peer) + 1);
    }
    return outcome();
  });
  EXPECT_THAT(ranks.wait_all(patience()), Each(0));
}

TEST(ShmResources, all_descriptors_and_mappings_are_released) {
  const SharedBoard board = make_board();
  ProcessRanks ranks(4, [&](Rank rank) {
    const std::size_t before = open_descriptors();
    {
      Member self;
      const Status joined = join_group(self, *board, rank, 4, kWindowBytes);
      EXPECT_TRUE(joined.ok()) << joined.to_string();
      EXPECT_EQ(mapped_windows("self").size(), 4u);
      // A pidfd and an epoll for each peer process. Sockets, listener and windows are closed.
      EXPECT_LE(open_descriptors(), before + 2 * 3);
      board->reach(rank, 2);
      for (Rank peer = 0; peer < 4; ++peer) EXPECT_TRUE(board->await(peer, 2));
    }
    EXPECT_EQ(open_descriptors(), before);
    EXPECT_EQ(mapped_windows("self").size(), 0u);
    return outcome();
  });
  EXPECT_THAT(ranks.wait_all(patience()), Each(0));
}

TEST(ShmResources, nothing_is_left_after_kill_9) {
  const SharedBoard board = make_board();
  ProcessRanks ranks(3, [&](Rank rank) {
    Member self;
    const Status opened = open_member(self, *board, rank, 3, kWindowBytes);
    EXPECT_TRUE(opened.ok()) << opened.to_string();
    board->value[static_cast<std::size_t>(rank)] = *mapped_windows("self").begin();
    // Rank 2 never connects, so listeners, waiting connections and windows in progress are open as well.
    if (rank < 2) {
      board->reach(rank, 2);
      (void)connect_member(self, *board, rank, 3);
    }
    for (;;) ::pause();
    return 1;
  });
  std::set<std::uint64_t> windows;
  std::vector<std::string> sockets;
  for (const Rank rank : {0, 1, 2}) {
    ASSERT_TRUE(board->await(rank, rank < 2 ? 2 : 1));
    ASSERT_TRUE(wait_until([&] { return board->value[static_cast<std::size_t>(rank)] != 0; }));
    windows.insert(board->value[static_cast<std::size_t>(rank)]);
    std::istringstream words(board->descriptor(rank));
    std::string format, number, bytes, socket;
    words >> format >> number >> bytes >> socket;
    ASSERT_TRUE(is_bound(socket)) << socket;
    sockets.push_back(socket);
  }
  const std::set<std::uint64_t> mapped = windows_mapped_by_any_process();
  EXPECT_TRUE(std::includes(mapped.begin(), mapped.end(), windows.begin(), windows.end()));
  for (const Rank rank : {0, 1, 2}) ranks.kill(rank, SIGKILL);
  EXPECT_THAT(ranks.wait_all(patience()), Each(128 + SIGKILL));
  for (const std::uint64_t window : windows_mapped_by_any_process()) EXPECT_FALSE(windows.contains(window)) << window;
  for (const std::string& socket : sockets) EXPECT_FALSE(is_bound(socket)) << socket;
  for (const fs::directory_entry& entry : fs::directory_iterator("/dev/shm")) {
    EXPECT_EQ(entry.path().filename().string().find("accord"), std::string::npos) << entry.path();
  }
}

TEST(ShmResources, a_system_call_that_the_sandbox_blocks_is_named) {
  ProcessRanks sandboxes(2, [&](Rank which) {
    if (which == 0) {
      refuse(SYS_memfd_create, EPERM);
    } else {
      refuse(SYS_socket, EACCES, AF_UNIX);
    }
    const Status viable = shm().viable();
    EXPECT_EQ(viable.code(), StatusCode::kUnsupported) << viable.to_string();
    EXPECT_THAT(viable.message(), HasSubstr(which == 0 ? "Operation not permitted" : "Permission denied"));
    EXPECT_FALSE(shm().open({.rank = 0, .size = 2, .window_bytes = kWindowBytes}).ok());
    return outcome();
  });
  EXPECT_THAT(sandboxes.wait_all(patience()), Each(0));
}

TEST(ShmResources, a_death_is_detected_without_pidfd) {
  const SharedBoard board = make_board();
  ProcessRanks ranks(2, [&](Rank rank) {
    refuse(SYS_pidfd_open, ENOSYS);
    Member self;
    const Status joined = join_group(self, *board, rank, 2, kWindowBytes);
    EXPECT_TRUE(joined.ok()) << joined.to_string();
    if (rank == 1) ::_exit(0);
    pollfd entry = {self.to(1).liveness_fd(), POLLIN, 0};
    EXPECT_EQ(::poll(&entry, 1, 60000), 1);
    EXPECT_EQ(self.to(1).update_peer_state(), PeerState::kLost);
    return outcome();
  });
  EXPECT_THAT(ranks.wait_all(patience()), Each(0));
}

// Rank 1 of 4 runs out of descriptors, at every point in turn, and gets an error that says so. The others get an
// error that names a rank, or have already connected to rank 1 and see it leave.
TEST(ShmResources, too_few_descriptors_are_an_error_and_not_a_hang) {
  constexpr std::size_t kCertainlyTooFew = 5;  // window, listener, and a connection to each of three
  for (std::size_t more = 0; more < 16; ++more) {
    const SharedBoard board = make_board();
    ProcessRanks ranks(4, [&](Rank rank) {
      // Creates an endpoint first: UBSan needs descriptors to inspect a type that it has not seen.
      EXPECT_TRUE(shm().viable().ok());
      if (rank == 1) allow_descriptors(more);
      Member self;
      const Status opened = open_member(self, *board, rank, 4, kWindowBytes);
      if (!opened.ok()) board->publish(rank, "");
      const Status status = opened.ok() ? connect_member(self, *board, rank, 4) : opened;
      if (rank == 1) {
        EXPECT_TRUE(more > kCertainlyTooFew || !status.ok());
        EXPECT_THAT(status.code(), AnyOf(StatusCode::kOk, StatusCode::kResourceExhausted)) << status.to_string();
        EXPECT_TRUE(status.ok() || status.message().find("Too many open files") != std::string::npos);
        board->value[1] = status.ok() ? 0 : 1;
        if (!status.ok()) self = {};
        board->reach(1, 2);
      } else if (status.ok()) {
        EXPECT_TRUE(board->await(1, 2));
        const PeerState expected = board->value[1] == 0 ? PeerState::kAlive : PeerState::kLeft;
        EXPECT_EQ(self.to(1).update_peer_state(), expected);
      } else {
        EXPECT_FALSE(status.ranks().empty()) << status.to_string();
        EXPECT_NE(status.code(), StatusCode::kTimeout) << status.to_string();
      }
      board->reach(rank, 3);
      for (Rank peer = 0; peer < 4; ++peer) EXPECT_TRUE(status.ok() == false || board->await(peer, 3));
      return outcome();
    });
    ASSERT_THAT(ranks.wait_all(patience()), Each(0)) << more << " descriptors";
  }
}

TEST(ShmResources, ranks_of_different_users_get_an_error_that_names_the_cause) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  const SharedBoard board = make_board();
  ProcessRanks ranks(2, [&](Rank rank) {
    EXPECT_TRUE(rank == 1 || ::setuid(65534) == 0);
    Member self;
    const Status opened = open_member(self, *board, rank, 2, kWindowBytes);
    EXPECT_TRUE(opened.ok()) << opened.to_string();
    const Status status = connect_member(self, *board, rank, 2);
    EXPECT_EQ(status.code(), StatusCode::kMismatch) << status.to_string();
    EXPECT_THAT(status.message(), HasSubstr("user 65534"));
    EXPECT_THAT(status.ranks(), ElementsAre(1 - rank));
    board->reach(rank, 2);
    EXPECT_TRUE(board->await(1 - rank, 2));
    return outcome();
  });
  EXPECT_THAT(ranks.wait_all(patience()), Each(0));
}

TEST(InprocDescriptor, of_another_process_is_rejected_by_name) {
  Transport& inproc = **transport_by_name("inproc");
  const SharedBoard board = make_board();
  ProcessRanks ranks(2, [&](Rank rank) {
    const auto endpoint = inproc.open({.rank = rank, .size = 2, .window_bytes = kWindowBytes});
    EXPECT_TRUE(endpoint.ok());
    board->publish(rank, (*endpoint)->descriptor());
    EXPECT_TRUE(board->await(1 - rank, 1));
    const std::vector<PeerDescriptor> peers = {{1 - rank, board->descriptor(1 - rank)}};
    const Status status = (*endpoint)->connect(peers, patience()).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status.to_string();
    EXPECT_THAT(status.message(), HasSubstr("another process"));
    EXPECT_THAT(status.ranks(), ElementsAre(1 - rank));
    board->reach(rank, 2);
    EXPECT_TRUE(board->await(1 - rank, 2));
    return outcome();
  });
  EXPECT_THAT(ranks.wait_all(patience()), Each(0));
}

}  // namespace
}  // namespace accord::transport
