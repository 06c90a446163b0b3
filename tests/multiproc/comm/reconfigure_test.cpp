// Processes that are killed at any moment while groups are formed by handles: the others get an error at once, and form
// the next group.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <optional>
#include <random>
#include <thread>

#include "ranks/process_ranks.hpp"

namespace accord {
namespace {

using testing::ProcessRanks;

class ReconfigureOfProcesses : public ::testing::Test {
 protected:
  static constexpr int kProcesses = 6;
  static constexpr int kRounds = kProcesses - 1;
  static constexpr std::size_t kHandleBytes = 512;
  static constexpr int kFine = 0, kNotAlone = 10, kOtherError = 11, kWrongSum = 12, kLate = 13;
  static constexpr auto kLong = std::chrono::seconds(30);

  /// Memory that all children share. In round r the processes whose bits are set in members[r] form a group.
  struct Board {
    std::atomic<int> round = -1;
    std::atomic<bool> is_over = false;
    std::atomic<unsigned> members[kRounds] = {};
    std::atomic<int> posted[kRounds][kProcesses] = {};
    char handles[kRounds][kProcesses][kHandleBytes] = {};
    std::atomic<int> formed[kRounds] = {};
  };

  ReconfigureOfProcesses() : board_(map()) {}
  ~ReconfigureOfProcesses() override { munmap(board_, sizeof(Board)); }

  static Board* map() {
    return new (mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)) Board;
  }

  bool is_past(int round) const { return board_->round.load() > round || board_->is_over.load(); }

  /// Hands out this process's handle, and returns those of the members; nullopt if the round is over before all are
  /// there.
  std::optional<std::vector<std::string>> gather(int round, int who, const std::string& handle) const {
    std::memcpy(board_->handles[round][who], handle.c_str(), handle.size() + 1);
    board_->posted[round][who] = 1;
    std::vector<std::string> handles;
    for (int member = 0; member < kProcesses; ++member) {
      if ((board_->members[round] >> member & 1U) == 0) continue;
      while (board_->posted[round][member] == 0)
        if (is_past(round)) return std::nullopt;
      handles.emplace_back(board_->handles[round][member]);
    }
    return handles;
  }

  int run(int who) const {
    Result<Communicator> alone = Communicator::alone({.timeout = kLong});
    if (!alone.ok()) return kNotAlone;
    Communicator comm = *alone;
    for (int round = 0;; ++round) {
      while (board_->round.load() < round)
        if (board_->is_over.load()) return kFine;
      round = board_->round.load();
      const Result<std::string> handle = comm.handle();
      if (!handle.ok()) return kNotAlone;
      const std::optional<std::vector<std::string>> handles = gather(round, who, *handle);
      if (!handles) continue;
      Result<Communicator> formed =
          comm.reconfigure("round " + std::to_string(round), *handles, {.timeout = std::chrono::seconds(2)});
      if (!formed.ok()) {
        // A process that reads the number of the next round earlier than this one does not take part in this one.
        const StatusCode code = formed.status().code();
        if (code == StatusCode::kPeerLost || (code == StatusCode::kTimeout && is_past(round))) continue;
        std::fprintf(stderr, "process %d: %s\n", who, formed.status().to_string().c_str());
        return code == StatusCode::kTimeout ? kLate : kOtherError;
      }
      comm = *formed;
      ++board_->formed[round];
      while (!is_past(round)) {
        std::int64_t sum = 1;
        const Status status = comm.all_reduce(Buffer{&sum, 1, DType::kInt64}, ReduceOp::kSum);
        if (!status.ok()) break;
        if (sum != comm.size()) return kWrongSum;
      }
    }
  }

  bool wait_for_formed(int round, int count) const {
    const Deadline deadline = Deadline::in(kLong);
    while (board_->formed[round].load() < count && !deadline.passed()) std::this_thread::yield();
    return board_->formed[round].load() == count;
  }

  Board* board_;
};

// In each round one process is killed at a random moment: while the handles are handed out, while the ranks connect, or
// while they compute. The round after it is without that process.
TEST_F(ReconfigureOfProcesses, a_process_killed_at_any_moment_does_not_stop_the_others) {
  std::mt19937 random(20261129);
  for (int attempt = 0; attempt < 25; ++attempt) {
    munmap(board_, sizeof(Board));
    board_ = map();
    unsigned alive = (1U << kProcesses) - 1;
    ProcessRanks processes(kProcesses, [&](Rank who) { return run(who); });
    for (int round = 0; round + 1 < kRounds; ++round) {
      board_->members[round] = alive;
      board_->round = round;
      const auto moment = Clock::now() + std::chrono::microseconds(random() % 12000);
      while (Clock::now() < moment) {
      }
      int victim = static_cast<int>(random() % kProcesses);
      while ((alive >> victim & 1U) == 0) victim = (victim + 1) % kProcesses;
      processes.kill(victim, SIGKILL);
      ASSERT_EQ(processes.wait(victim, Deadline::in(kLong)), 128 + SIGKILL);
      alive &= ~(1U << victim);
    }
    board_->members[kRounds - 1] = alive;
    board_->round = kRounds - 1;
    ASSERT_TRUE(wait_for_formed(kRounds - 1, kProcesses - (kRounds - 1))) << "attempt " << attempt;
    board_->is_over = true;
    const std::vector<int> codes = processes.wait_all(Deadline::in(kLong));
    for (int who = 0; who < kProcesses; ++who)
      ASSERT_EQ(codes[static_cast<std::size_t>(who)], (alive >> who & 1U) != 0 ? kFine : 128 + SIGKILL)
          << "process " << who << ", attempt " << attempt;
  }
}

// A process that is stopped, not dead, is a late rank: the others name it after the timeout, and go on without it.
TEST_F(ReconfigureOfProcesses, a_stopped_process_is_named_after_the_timeout) {
  constexpr int kThree = 3;
  const auto body = [&](Rank who) {
    Result<Communicator> comm = Communicator::alone({.timeout = std::chrono::milliseconds(500)});
    if (!comm.ok()) return kNotAlone;
    board_->members[0] = 0b111;
    const std::optional<std::vector<std::string>> handles = gather(0, who, *comm->handle());
    ++board_->formed[0];
    while (!is_past(0)) std::this_thread::yield();
    const Status status = comm->reconfigure("all", *handles).status();
    if (who == 2) return kFine;
    if (status.code() != StatusCode::kTimeout || status.ranks() != std::vector<Rank>{2}) {
      std::fprintf(stderr, "process %d: %s\n", who, status.to_string().c_str());
      return kOtherError;
    }
    board_->members[1] = 0b011;
    const std::optional<std::vector<std::string>> rest = gather(1, who, *comm->handle());
    return comm->reconfigure("rest", *rest, {.timeout = kLong}).ok() ? kFine : kOtherError;
  };
  board_->round = 0;
  ProcessRanks processes(kThree, body);
  ASSERT_TRUE(wait_for_formed(0, kThree));
  processes.kill(2, SIGSTOP);
  board_->round = 1;
  EXPECT_EQ(processes.wait(0, Deadline::in(kLong)), kFine);
  EXPECT_EQ(processes.wait(1, Deadline::in(kLong)), kFine);
}

}  // namespace
}  // namespace accord
