#include "engine/host/thread_pool.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

#include "resource_limit.hpp"
#include "sanitized.hpp"

namespace accord::engine {
namespace {

std::uint64_t address_space() {
  std::uint64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
}

TEST(ThreadPool, every_part_runs_once_in_every_round) {
  for (const int threads : {1, 2, 4}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.threads(), threads);
    for (int round = 0; round < 300; ++round) {
      std::vector<int> seen(static_cast<std::size_t>(round % 17), 0);
      const Status status = pool.run(round % 17, [&](int part) {
        ++seen[static_cast<std::size_t>(part)];
        return Status();
      });
      EXPECT_TRUE(status.ok());
      EXPECT_EQ(seen, std::vector<int>(static_cast<std::size_t>(round % 17), 1));
    }
  }
}

TEST(ThreadPool, run_returns_the_failure_of_the_lowest_part) {
  for (const int threads : {1, 3}) {
    ThreadPool pool(threads);
    for (int round = 0; round < 100; ++round) {
      const Status status = pool.run(
          8, [](int part) { return part >= 3 ? Status(StatusCode::kInternal, std::to_string(part)) : Status(); });
      EXPECT_EQ(status.message(), "3");
      EXPECT_TRUE(pool.run(8, [](int) { return Status(); }).ok());
    }
  }
}

TEST(ThreadPool, part_ranges_cover_everything_once_at_multiples_of_the_grain) {
  for (const std::int64_t count : {0, 1, 15, 16, 17, 100, 1000}) {
    for (const int parts : {1, 2, 3, 7}) {
      std::int64_t next = 0;
      for (int part = 0; part < parts; ++part) {
        const PartRange range = part_range(count, 16, part, parts);
        EXPECT_EQ(range.first, next);
        EXPECT_TRUE(range.first % 16 == 0 || range.first == count);
        next = range.last;
      }
      EXPECT_EQ(next, count);
    }
  }
}

TEST(ThreadPool, works_with_as_many_threads_as_the_system_provides) {
  if (testing::kSanitized) GTEST_SKIP() << "a sanitizer needs its own address space";
  constexpr int kThreads = 64, kParts = 1000;
  const testing::ResourceLimit limit(RLIMIT_AS, address_space() + (std::uint64_t{100} << 20));  // for their stacks
  ThreadPool pool(kThreads);
  EXPECT_LT(pool.threads(), kThreads);
  EXPECT_GT(pool.threads(), 1);
  std::atomic<int> sum = 0;
  const Status status = pool.run(kParts, [&](int part, int thread) {
    EXPECT_LT(thread, pool.threads());
    sum += part;
    return Status();
  });
  EXPECT_TRUE(status.ok()) << status.to_string();
  EXPECT_EQ(sum, kParts * (kParts - 1) / 2);
}

}  // namespace
}  // namespace accord::engine
