// The order in which the threads of a block run on the host between their meetings.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <mutex>
#include <set>
#include <vector>

#include "device/host_block.hpp"

namespace accord::testing {
namespace {

using ::testing::Each;
using ::testing::SizeIs;

constexpr int kThreads = 8, kLanes = 4, kMeetings = 6;

template <typename K>
void run(const K& kernel, int blocks = 1) {
  run_blocks({.code = run_on_host<K>,
              .arguments = &kernel,
              .threads = kThreads,
              .lanes = kLanes,
              .last = blocks,
              .blocks = blocks});
}

/// The threads that ran between each two meetings, in order.
struct Log {
  std::mutex mutex;
  std::vector<std::vector<int>> arrived = std::vector<std::vector<int>>(kMeetings);
};
struct ArriveAndMeet {
  Log* log;
  void operator()(HostBlock& block) const {
    for (std::vector<int>& arrived : log->arrived) {
      {
        const std::lock_guard lock(log->mutex);
        arrived.push_back(block.thread());
      }
      block.sync();
    }
  }
};

TEST(HostTeam, thread_order_changes_at_each_sync_and_repeats_in_every_run) {
  if (!kTakeTurns) GTEST_SKIP() << "threads run concurrently";
  Log first, second;
  run(ArriveAndMeet{&first});
  run(ArriveAndMeet{&second});
  EXPECT_EQ(first.arrived, second.arrived);
  EXPECT_THAT(first.arrived, Each(SizeIs(kThreads)));
  EXPECT_GT((std::set<std::vector<int>>(first.arrived.begin(), first.arrived.end()).size()), 1U);
  for (const std::vector<int>& arrived : first.arrived)  // the lanes of a warp follow each other
    for (int i = 0; i < kThreads; ++i) EXPECT_EQ(arrived[i] / kLanes, arrived[i / kLanes * kLanes] / kLanes);
}

/// Each thread reads what the thread with the next number writes, with no synchronization in between.
struct SkipSynchronization {
  int* numbers;
  bool* differs;
  void operator()(HostBlock& block) const {
    for (int turn = 1; turn <= kMeetings; ++turn) {
      numbers[block.thread()] = turn;
      if (numbers[(block.thread() + 1) % kThreads] != turn) *differs = true;
      block.sync();
    }
  }
};

TEST(HostTeam, a_missing_synchronization_is_detected) {
  if (!kTakeTurns) GTEST_SKIP() << "threads run concurrently";
  int numbers[kThreads] = {};
  bool differs = false;
  run(SkipSynchronization{numbers, &differs});
  EXPECT_TRUE(differs);
}

/// The first thread waits in a loop for the last one, which in turn waits for the first.
struct AwaitEachOther {
  std::uint64_t* words;
  void operator()(HostBlock& block) const {
    const int last = block.threads() - 1;
    if (block.thread() == 0) block.store_release(words, 1);
    if (block.thread() == last)
      while (block.load_acquire(words) == 0) block.pause();
    if (block.thread() == last) block.store_release(words + 1, 1);
    if (block.thread() == 0)
      while (block.load_acquire(words + 1) == 0) block.pause();
  }
};

TEST(HostTeam, a_pausing_thread_yields) {
  std::uint64_t words[2] = {};
  run(AwaitEachOther{words});
  EXPECT_EQ(words[1], 1U);
}

struct SkipBarrier {
  void operator()(HostBlock& block) const {
    if (block.thread() > 0) block.sync_warp();
  }
};

TEST(HostTeam, a_skipped_synchronization_is_reported) {
  if (!kTakeTurns) GTEST_SKIP() << "this barrier never completes";
  EXPECT_DEATH(run(SkipBarrier{}), "wait at a barrier that other threads do not reach");
}

struct NeverAwaits {
  void operator()(HostBlock& block) const { block.sync(); }
};

TEST(HostTeam, a_kernel_that_starts_early_and_never_waits_is_reported) {
  const NeverAwaits kernel;
  const HostBlocks blocks{.code = run_on_host<NeverAwaits>,
                          .arguments = &kernel,
                          .threads = kThreads,
                          .lanes = kLanes,
                          .starts_early = true};
  EXPECT_DEATH(run_blocks(blocks), "ends without await_earlier");
}

struct WaitAfterStartNext {
  void operator()(HostBlock& block) const {
    block.start_next();
    block.pause();
  }
};

TEST(HostTeam, a_kernel_that_waits_after_it_starts_the_next_is_reported) {
  EXPECT_DEATH(run(WaitAfterStartNext{}), "waits after start_next");
}

/// Each thread keeps its numbers on its stack while the others do the same.
struct KeepNumbers {
  std::uint64_t* sums;
  void operator()(HostBlock& block) const {
    constexpr int kCount = 1 << 14;
    volatile std::uint64_t numbers[kCount];
    for (int i = 0; i < kCount; ++i) numbers[i] = static_cast<std::uint64_t>(block.thread() + i);
    block.sync();
    std::uint64_t sum = 0;
    for (int i = 0; i < kCount; ++i) sum += numbers[i] - static_cast<std::uint64_t>(i);
    sums[block.thread()] += sum / kCount;
  }
};

TEST(HostTeam, threads_have_their_own_space_for_large_arrays) {
  std::vector<std::uint64_t> sums(kThreads), expected;
  run(KeepNumbers{sums.data()}, 2);
  for (int thread = 0; thread < kThreads; ++thread) expected.push_back(2 * static_cast<std::uint64_t>(thread));
  EXPECT_EQ(sums, expected);
}

}  // namespace
}  // namespace accord::testing
