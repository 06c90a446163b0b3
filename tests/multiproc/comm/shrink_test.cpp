// Processes that lose some of their number, by any kind of death and at any time, continue as a smaller group.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <atomic>
#include <random>
#include <thread>

#include "ranks/process_ranks.hpp"

namespace accord {
namespace {

using testing::ProcessRanks;
using testing::TemporaryDirectory;

class ShrinkOfProcesses : public ::testing::Test {
 protected:
  static constexpr int kFine = 0, kNoGroup = 10, kNoFailure = 11, kNoShrink = 12, kWrongSum = 13, kTimedOut = 14;

  /// Memory that all children share.
  struct Seen {
    std::atomic<int> ready = 0;
    std::atomic<int> failed = 0;
    std::atomic<int> size[8] = {};   ///< of the last group of each rank that survived
    std::atomic<int> place[8] = {};  ///< its rank in it
  };

  ShrinkOfProcesses()
      : seen_(new (mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)) Seen) {}
  ~ShrinkOfProcesses() override { munmap(seen_, 4096); }

  Result<Communicator> join(Rank rank, int size, const std::string& name) const {
    Result<std::shared_ptr<Store>> store = make_file_store(directory_.path());
    if (!store.ok()) return store.status();
    CommunicatorOptions options;
    options.name = name;
    options.timeout = std::chrono::seconds(30);
    return Communicator::create(*store, rank, size, options);
  }

  /// Runs a rank that computes until the group fails and then shrinks it, until at most `until` ranks are left.
  int run(Rank rank, int size, int until, const std::string& name) const {
    Result<Communicator> joined = join(rank, size, name);
    if (!joined.ok()) return kNoGroup;
    Communicator comm = std::move(*joined);
    ++seen_->ready;
    while (comm.size() > until) {
      Status status;
      while (status.ok()) {
        float value = 1;
        status = comm.all_reduce(Buffer{&value, 1, DType::kFloat32}, ReduceOp::kSum);
        if (status.ok() && value != static_cast<float>(comm.size())) return kWrongSum;
      }
      if (status.code() == StatusCode::kTimeout) return kTimedOut;
      ++seen_->failed;
      Result<Communicator> rest = comm.shrink("rest");
      if (!rest.ok()) {
        std::fprintf(stderr, "rank %d: %s\n", rank, rest.status().to_string().c_str());
        return kNoShrink;
      }
      comm = std::move(*rest);
    }
    std::int64_t places = comm.rank();
    const Status status = comm.all_reduce(Buffer{&places, 1, DType::kInt64}, ReduceOp::kSum);
    if (!status.ok()) std::fprintf(stderr, "rank %d: %s\n", rank, status.to_string().c_str());
    if (!status.ok() || places != comm.size() * (comm.size() - 1) / 2) return kWrongSum;
    seen_->size[rank] = comm.size();
    seen_->place[rank] = comm.rank();
    return kFine;
  }

  void wait_for(const std::atomic<int>& count, int at_least) const {
    const Deadline deadline = Deadline::in(std::chrono::seconds(30));
    while (count.load() < at_least && !deadline.passed()) std::this_thread::yield();
    ASSERT_GE(count.load(), at_least);
  }

  TemporaryDirectory directory_;
  Seen* seen_;
};

TEST_F(ShrinkOfProcesses, survivors_of_a_killed_rank_continue) {
  for (const Rank victim : {0, 2, 3}) {
    seen_->ready = 0;
    ProcessRanks ranks(4, [&](Rank rank) { return run(rank, 4, 3, "job" + std::to_string(victim)); });
    wait_for(seen_->ready, 4);
    ranks.kill(victim, SIGKILL);
    const std::vector<int> codes = ranks.wait_all(Deadline::in(std::chrono::seconds(30)));
    for (Rank r = 0; r < 4; ++r) {
      EXPECT_EQ(codes[r], r == victim ? 128 + SIGKILL : kFine) << "rank " << r;
      if (r == victim) continue;
      EXPECT_EQ(seen_->size[r].load(), 3);
      EXPECT_EQ(seen_->place[r].load(), r > victim ? r - 1 : r);
    }
  }
}

// The second rank dies at any time after the first death: before, while or after the others shrink.
TEST_F(ShrinkOfProcesses, survivors_continue_after_two_deaths_at_any_interval) {
  std::mt19937 random(20261121);
  for (int attempt = 0; attempt < 40; ++attempt) {
    seen_->ready = 0;
    seen_->failed = 0;
    const Rank first = static_cast<Rank>(random() % 5), second = static_cast<Rank>((first + 1 + random() % 4) % 5);
    ProcessRanks ranks(5, [&](Rank rank) { return run(rank, 5, 3, "job" + std::to_string(attempt)); });
    wait_for(seen_->ready, 5);
    ranks.kill(first, SIGKILL);
    if (attempt % 2 == 0) wait_for(seen_->failed, 1);
    const auto moment = Clock::now() + std::chrono::microseconds(random() % 3000);
    while (Clock::now() < moment) {
    }
    ranks.kill(second, SIGKILL);
    const std::vector<int> codes = ranks.wait_all(Deadline::in(std::chrono::seconds(60)));
    for (Rank r = 0; r < 5; ++r)
      ASSERT_EQ(codes[r], r == first || r == second ? 128 + SIGKILL : kFine)
          << "rank " << r << " after the deaths of " << first << " and " << second << ", attempt " << attempt;
  }
}

TEST_F(ShrinkOfProcesses, a_stopped_rank_is_excluded_after_the_patience_expires) {
  seen_->ready = 0;
  ProcessRanks ranks(3, [&](Rank rank) {
    Result<Communicator> comm = join(rank, 3, "job");
    if (!comm.ok()) return kNoGroup;
    ++seen_->ready;
    if (rank == 1) pause();
    CallOptions soon;
    soon.timeout = std::chrono::milliseconds(200);
    if (comm->barrier(soon).code() != StatusCode::kTimeout && comm->status().code() != StatusCode::kTimeout)
      return kNoFailure;
    Result<Communicator> rest = comm->shrink("rest", soon);
    if (!rest.ok()) return kNoShrink;
    return rest->size() == 2 && rest->barrier().ok() ? kFine : kWrongSum;
  });
  wait_for(seen_->ready, 3);
  ranks.kill(1, SIGSTOP);
  const Deadline deadline = Deadline::in(std::chrono::seconds(30));
  EXPECT_EQ(ranks.wait(0, deadline), kFine);
  EXPECT_EQ(ranks.wait(2, deadline), kFine);
}

}  // namespace
}  // namespace accord
