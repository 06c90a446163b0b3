// Real processes and real kills: whatever happens to one rank, the others soon get an error that names it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/utsname.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <numeric>
#include <optional>
#include <thread>
#include <utility>

#include "ranks/process_ranks.hpp"

namespace accord {
namespace {

using ::testing::AnyOf;
using testing::ProcessRanks;
using testing::TemporaryDirectory;

constexpr auto kDeath = std::chrono::seconds(1);

class KilledRanks : public ::testing::Test {
 protected:
  /// Exit codes of the children: the outcome that they saw.
  enum Seen : int { kFine = 0, kNamedTheDead = 10, kOther = 11, kTooLate = 12, kNoGroup = 13 };

  /// Memory that all children share.
  struct Board {
    std::atomic<int> ready = 0;
    std::atomic<int> received = 0;
    std::atomic<std::int64_t> killed_at_ns = 0;
  };

  KilledRanks() : board_(new (mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)) Board) {}
  ~KilledRanks() override { munmap(board_, 4096); }

  Result<Communicator> join(Rank rank, int size) const {
    Result<std::shared_ptr<Store>> store = make_file_store(directory_.path());
    if (!store.ok()) return store.status();
    CommunicatorOptions options;
    options.timeout = std::chrono::seconds(30);
    return Communicator::create(*store, rank, size, options);
  }

  int judge(const Status& status, Rank dead) const {
    const auto now = Clock::now().time_since_epoch();
    const Duration since = now - Duration(board_->killed_at_ns.load());
    if (status.code() != StatusCode::kPeerLost || status.ranks() != std::vector<Rank>{dead} ||
        status.message().find("rank " + std::to_string(dead)) == std::string::npos) {
      std::fprintf(stderr, "%s\n", status.to_string().c_str());
      return kOther;
    }
    return since < kDeath ? kNamedTheDead : kTooLate;
  }

  /// Returns how `size` ranks that run `body` end. `victim`, if any, is killed once all are ready. A busy machine may
  /// keep a rank from running for a second, so after kTooLate the test has two more attempts; an error that is always
  /// late still fails.
  std::vector<int> exits_of(int size, std::optional<Rank> victim, const std::function<int(Rank)>& body) {
    std::vector<int> codes;
    for (int attempt = 0; attempt < 3; ++attempt) {
      board_->ready = 0;
      board_->received = 0;
      ProcessRanks ranks(size, body);
      const Deadline deadline = Deadline::in(std::chrono::seconds(30));
      while (board_->ready.load() < size && !deadline.passed()) std::this_thread::yield();
      EXPECT_EQ(board_->ready.load(), size);
      if (victim) {
        board_->killed_at_ns = Duration(Clock::now().time_since_epoch()).count();
        ranks.kill(*victim, SIGKILL);
      }
      codes = ranks.wait_all(Deadline::in(std::chrono::seconds(20)));
      if (std::find(codes.begin(), codes.end(), kTooLate) == codes.end()) break;
    }
    return codes;
  }

  TemporaryDirectory directory_;
  Board* board_;
};

TEST_F(KilledRanks, all_reduce_survives_a_peer_killed_while_it_waits) {
  const std::vector<int> exits = exits_of(4, 2, [&](Rank rank) {
    Result<Communicator> comm = join(rank, 4);
    if (!comm.ok()) return static_cast<int>(kNoGroup);
    ++board_->ready;
    if (rank == 2) pause();  // never calls
    float value = 1;
    return judge(comm->all_reduce(Buffer{&value, 1, DType::kFloat32}, ReduceOp::kSum), 2);
  });
  EXPECT_EQ(exits, (std::vector<int>{kNamedTheDead, kNamedTheDead, 128 + SIGKILL, kNamedTheDead}));
}

// The kernel may take long to free a process's memory, to release its GPUs or to write its core file. Here a tracer
// holds the process at that point. Before Linux 5.16, nothing shows then that the process is exiting.
TEST_F(KilledRanks, a_process_that_the_kernel_is_still_tearing_down_is_named) {
  ProcessRanks ranks(2, [&](Rank rank) {
    Result<Communicator> comm = join(rank, 2);
    if (!comm.ok()) return static_cast<int>(kNoGroup);
    ++board_->ready;
    if (rank == 1) {
      while (board_->received.load() == 0) std::this_thread::yield();
      _exit(kFine);
    }
    float value = 1;
    return judge(comm->all_reduce(Buffer{&value, 1, DType::kFloat32}, ReduceOp::kSum), 1);
  });
  const Deadline deadline = Deadline::in(std::chrono::seconds(60));
  while (board_->ready.load() < 2 && !deadline.passed()) std::this_thread::yield();
  utsname system = {};
  int major = 0, minor = 0;
  ASSERT_EQ(uname(&system), 0);
  ASSERT_EQ(std::sscanf(system.release, "%d.%d", &major, &minor), 2);
  if (std::pair(major, minor) < std::pair(5, 16)) GTEST_SKIP() << "Linux " << system.release << ", older than 5.16";
  ASSERT_EQ(ptrace(PTRACE_SEIZE, ranks.process(1), nullptr, PTRACE_O_TRACEEXIT), 0) << std::strerror(errno);
  board_->killed_at_ns = Duration(Clock::now().time_since_epoch()).count();
  board_->received = 1;
  int stopped = 0;
  ASSERT_EQ(waitpid(ranks.process(1), &stopped, 0), ranks.process(1));
  ASSERT_EQ(stopped >> 8, SIGTRAP | (PTRACE_EVENT_EXIT << 8));
  EXPECT_THAT(ranks.wait(0, deadline), AnyOf(kNamedTheDead, kTooLate));  // a busy machine may be late
  EXPECT_EQ(ptrace(PTRACE_DETACH, ranks.process(1), nullptr, nullptr), 0) << std::strerror(errno);
  EXPECT_EQ(ranks.wait(1, deadline), kFine);
}

TEST_F(KilledRanks, a_rank_killed_during_a_large_all_reduce_is_named) {
  const std::vector<int> exits = exits_of(3, 0, [&](Rank rank) {
    Result<Communicator> comm = join(rank, 3);
    if (!comm.ok()) return static_cast<int>(kNoGroup);
    ++board_->ready;
    std::vector<float> values(1 << 20, 1);
    while (true) {
      const Status status = comm->all_reduce(Buffer{values.data(), values.size(), DType::kFloat32}, ReduceOp::kMax);
      if (!status.ok()) return judge(status, 0);
    }
  });
  EXPECT_EQ(exits, (std::vector<int>{128 + SIGKILL, kNamedTheDead, kNamedTheDead}));
}

TEST_F(KilledRanks, pending_works_and_later_calls_name_the_dead_rank) {
  const std::vector<int> exits = exits_of(2, 1, [&](Rank rank) {
    Result<Communicator> comm = join(rank, 2);
    if (!comm.ok()) return static_cast<int>(kNoGroup);
    if (rank == 1) {
      ++board_->ready;
      pause();
    }
    std::vector<float> values(100000);
    std::vector<Work> works;
    for (int i = 0; i < 3; ++i)
      works.push_back(comm->all_reduce_async(Buffer{values.data(), values.size(), DType::kFloat32}, ReduceOp::kSum));
    ++board_->ready;
    for (Work& work : works)
      if (const int seen = judge(work.wait(), 1); seen != kNamedTheDead) return seen;
    return judge(comm->barrier(), 1);
  });
  EXPECT_EQ(exits, (std::vector<int>{kNamedTheDead, 128 + SIGKILL}));
}

TEST_F(KilledRanks, tagged_receives_fail_with_their_sender_but_get_earlier_messages) {
  const std::vector<int> exits = exits_of(3, 1, [&](Rank rank) {
    Result<Communicator> comm = join(rank, 3);
    if (!comm.ok()) return static_cast<int>(kNoGroup);
    float value = 5, later = 0;
    const Buffer one{&value, 1, DType::kFloat32};
    if (rank == 1) {
      for (const std::int32_t tag : {1, 2})
        if (!comm->send(ConstBuffer(one), 0, tag).ok()) return static_cast<int>(kOther);
      ++board_->ready;
      pause();
    }
    if (rank == 2) {
      ++board_->ready;
      return judge(comm->recv(one, 1), 1);
    }
    // A group that has failed receives nothing more, so this happens before the kill.
    if (!comm->recv(one, 1, 2).ok() || value != 5) return static_cast<int>(kOther);
    ++board_->ready;
    Work waits = comm->recv_async(Buffer{&later, 1, DType::kFloat32}, 1);
    if (const int seen = judge(comm->recv(one, 1, 3), 1); seen != kNamedTheDead) return seen;
    return judge(waits.wait(), 1);
  });
  EXPECT_EQ(exits, (std::vector<int>{kNamedTheDead, 128 + SIGKILL, kNamedTheDead}));
}

TEST_F(KilledRanks, a_receive_from_any_rank_ends_when_one_of_them_is_killed) {
  const std::vector<int> exits = exits_of(3, 2, [&](Rank rank) {
    Result<Communicator> comm = join(rank, 3);
    if (!comm.ok()) return static_cast<int>(kNoGroup);
    ++board_->ready;
    if (rank == 2) pause();
    float value = 0;
    return judge(comm->recv_any(Buffer{&value, 1, DType::kFloat32}, 3).status(), 2);
  });
  EXPECT_EQ(exits, (std::vector<int>{kNamedTheDead, kNamedTheDead, 128 + SIGKILL}));
}

TEST_F(KilledRanks, a_wait_for_a_signal_ends_and_the_dead_ranks_memory_can_still_be_read) {
  const std::vector<int> exits = exits_of(3, 2, [&](Rank rank) {
    Result<Communicator> comm = join(rank, 3);
    if (!comm.ok()) return static_cast<int>(kNoGroup);
    Result<Window> window = comm->window(1 << 20);
    if (!window.ok()) return static_cast<int>(kOther);
    window->local()[0] = std::byte{7};
    if (!comm->barrier().ok()) return static_cast<int>(kOther);
    ++board_->ready;
    if (rank == 2) pause();
    const int seen = judge(window->wait(2), 2);
    return window->peer(2)[0] == std::byte{7} ? seen : static_cast<int>(kOther);
  });
  EXPECT_EQ(exits, (std::vector<int>{kNamedTheDead, kNamedTheDead, 128 + SIGKILL}));
}

TEST_F(KilledRanks, a_rank_that_exits_without_closing_is_named) {
  const std::vector<int> exits = exits_of(2, std::nullopt, [&](Rank rank) {
    Result<Communicator> comm = join(rank, 2);
    if (!comm.ok()) return static_cast<int>(kNoGroup);
    ++board_->ready;
    if (rank == 1) {
      board_->killed_at_ns = Duration(Clock::now().time_since_epoch()).count();
      _exit(0);
    }
    return judge(comm->barrier(), 1);
  });
  EXPECT_EQ(exits, (std::vector<int>{kNamedTheDead, kFine}));
}

TEST_F(KilledRanks, a_stopped_rank_is_named_by_a_timeout) {
  ProcessRanks ranks(2, [&](Rank rank) {
    Result<Communicator> comm = join(rank, 2);
    if (!comm.ok()) return static_cast<int>(kNoGroup);
    if (rank == 1) {
      ++board_->ready;
      raise(SIGSTOP);
      return static_cast<int>(kFine);
    }
    while (board_->ready.load() == 0) std::this_thread::yield();
    CallOptions options;
    options.timeout = std::chrono::milliseconds(300);
    const Status status = comm->barrier(options);
    return status.code() == StatusCode::kTimeout && status.ranks() == std::vector<Rank>{1}
               ? static_cast<int>(kNamedTheDead)
               : static_cast<int>(kOther);
  });
  EXPECT_EQ(ranks.wait(0, Deadline::in(std::chrono::seconds(20))), kNamedTheDead);
}

TEST_F(KilledRanks, processes_reduce_and_close_in_any_order_without_error) {
  ProcessRanks ranks(5, [&](Rank rank) {
    Result<Communicator> comm = join(rank, 5);
    if (!comm.ok()) return static_cast<int>(kNoGroup);
    std::vector<std::int32_t> values(30000);
    std::iota(values.begin(), values.end(), rank);
    if (const Status status = comm->all_reduce(Buffer{values.data(), values.size(), DType::kInt32}, ReduceOp::kSum);
        !status.ok())
      return static_cast<int>(kOther);
    for (int i = 0; i < 30000; ++i)
      if (values[i] != 5 * i + 10) return static_cast<int>(kOther);
    return static_cast<int>(kFine);
  });
  EXPECT_EQ(ranks.wait_all(Deadline::in(std::chrono::seconds(30))), std::vector<int>(5, kFine));
}

TEST_F(KilledRanks, a_forked_child_cannot_use_or_disturb_its_parents_group) {
  ProcessRanks ranks(2, [&](Rank rank) {
    Result<Communicator> comm = join(rank, 2);
    if (!comm.ok()) return static_cast<int>(kNoGroup);
    const pid_t child = fork();
    if (child == 0) {
      const bool refused = comm->barrier().code() == StatusCode::kWrongState;
      comm->abort("by a child");
      comm->close();
      { const Communicator last = std::move(*comm); }
      _exit(refused ? 0 : 1);
    }
    int status = 0;
    waitpid(child, &status, 0);
    if (status != 0) return static_cast<int>(kOther);
    return comm->barrier().ok() ? static_cast<int>(kFine) : static_cast<int>(kOther);
  });
  EXPECT_EQ(ranks.wait_all(Deadline::in(std::chrono::seconds(20))), std::vector<int>(2, kFine));
}

}  // namespace
}  // namespace accord
