#include "memory/block_allocator.hpp"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <thread>
#include <vector>

namespace accord::memory {
namespace {

constexpr std::size_t kUnit = BlockAllocator::kUnit;

TEST(BlockAllocator, blocks_are_disjoint_aligned_and_within_bounds_for_any_request) {
  constexpr std::size_t kBytes = 1 << 20;
  BlockAllocator allocator(kBytes);
  std::map<std::size_t, std::size_t> taken;  // end, by begin
  std::mt19937 random(7);
  const auto one_of = [&](std::size_t below) {
    return std::uniform_int_distribution<std::size_t>(0, below - 1)(random);
  };
  for (int step = 0; step < 20000; ++step) {
    if (!taken.empty() && one_of(5) < 2) {
      const auto victim = std::next(taken.begin(), static_cast<std::ptrdiff_t>(one_of(taken.size())));
      allocator.release(victim->first);
      taken.erase(victim);
      continue;
    }
    const std::size_t bytes = one_of(step % 3 == 0 ? 60000 : 300), alignment = std::size_t{1} << one_of(13);
    const std::optional<std::size_t> offset = allocator.allocate(bytes, alignment);
    if (!offset) continue;
    ASSERT_EQ(*offset % alignment, 0U);
    ASSERT_LE(*offset + bytes, kBytes);
    const auto next = taken.lower_bound(*offset);
    if (next != taken.end()) {
      ASSERT_LE(*offset + bytes, next->first);
    }
    if (next != taken.begin()) {
      ASSERT_LE(std::prev(next)->second, *offset);
    }
    taken[*offset] = *offset + std::max<std::size_t>(bytes, 1);
  }
  for (const auto& [offset, end] : taken) allocator.release(offset);
  EXPECT_EQ(allocator.free_bytes(), kBytes);
  EXPECT_EQ(allocator.largest_free(), kBytes);
  EXPECT_EQ(allocator.allocate(kBytes, 4096), 0U);
}

TEST(BlockAllocator, the_smallest_block_that_fits_is_used) {
  BlockAllocator allocator(16 * kUnit);
  std::vector<std::size_t> places;
  for (const std::size_t units : {4, 1, 2, 1, 8}) places.push_back(*allocator.allocate(units * kUnit, 1));
  EXPECT_EQ(allocator.allocate(1, 1), std::nullopt);
  allocator.release(places[0]);
  allocator.release(places[2]);
  EXPECT_EQ(allocator.allocate(kUnit + 1, 1), places[2]);
  EXPECT_EQ(allocator.allocate(kUnit, 1), places[0]);
}

TEST(BlockAllocator, requests_that_do_not_fit_are_rejected) {
  BlockAllocator none(0), small(kUnit);
  EXPECT_EQ(none.allocate(0, 1), std::nullopt);
  EXPECT_EQ(small.allocate(kUnit + 1, 1), std::nullopt);
  EXPECT_EQ(small.allocate(SIZE_MAX, 1), std::nullopt);
  EXPECT_TRUE(small.allocate(0, 1).has_value());
  EXPECT_EQ(small.allocate(0, 1), std::nullopt);
}

TEST(BlockAllocator, threads_may_share_one) {
  BlockAllocator allocator(1 << 20);
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t)
    threads.emplace_back([&allocator] {
      for (int i = 0; i < 2000; ++i) {
        const std::optional<std::size_t> a = allocator.allocate(100, 64), b = allocator.allocate(5000, 64);
        ASSERT_TRUE(a && b);
        allocator.release(*a);
        allocator.release(*b);
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(allocator.largest_free(), std::size_t{1} << 20);
}

}  // namespace
}  // namespace accord::memory
