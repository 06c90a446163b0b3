#include "plan/bounds.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "unit/plan/plans_for_tests.hpp"

namespace accord::plan {
namespace {

using testing::whole_plan;

// Expects that `ranges` follow each other without a gap and cover `elements` elements.
void expect_cover(const std::vector<Range>& ranges, std::size_t elements) {
  std::size_t next = 0;
  for (const Range& range : ranges) {
    EXPECT_EQ(range.first, next);
    next += range.count;
  }
  EXPECT_EQ(next, elements);
}

TEST(Bounds, chunks_cover_every_buffer_exactly_for_any_count_and_element) {
  for (const int size : {1, 2, 3, 7, 16, 17}) {
    const auto n = static_cast<std::size_t>(size);
    const Plan reduce = whole_plan(Collective::kAllReduce, "two_shot", size);
    const Plan gather = whole_plan(Collective::kAllGather, "direct", size);
    const Plan scatter = whole_plan(Collective::kReduceScatter, "direct", size);
    for (const std::size_t bytes : {1, 2, 4, 8, 12, 16, 100}) {
      for (std::size_t count = 0; count < 700; count += count < 40 ? 1 : 37) {
        const Bounds reduced = bounds_of(reduce, count, bytes);
        expect_cover(reduced.input, count);
        expect_cover(reduced.output, count);
        ASSERT_EQ(reduced.input.size(), n);
        const Bounds gathered = bounds_of(gather, count, bytes);
        expect_cover(gathered.input, count);
        expect_cover(gathered.output, count * n);
        for (const Range& range : gathered.output) EXPECT_EQ(range.count, count);
        const Bounds scattered = bounds_of(scatter, count, bytes);
        expect_cover(scattered.input, count * n);
        expect_cover(scattered.output, count);
        EXPECT_EQ(scattered.longest, count);
      }
    }
  }
}

TEST(Bounds, long_buffers_are_split_at_cache_lines_and_chunks_differ_by_at_most_a_line) {
  const Plan plan = whole_plan(Collective::kAllReduce, "two_shot", 3);
  const Bounds bounds = bounds_of(plan, 1000, 4);  // 62.5 lines of 16 elements: 21 + 21 + 20.5
  ASSERT_EQ(bounds.input.size(), 3U);
  EXPECT_EQ(bounds.input[0].count, 336U);
  EXPECT_EQ(bounds.input[1].first, 336U);
  EXPECT_EQ(bounds.input[2].first, 672U);
  EXPECT_EQ(bounds.input[2].count, 328U);
  EXPECT_EQ(bounds.longest, 336U);
}

TEST(Bounds, short_buffers_are_split_at_elements) {
  const Plan plan = whole_plan(Collective::kAllReduce, "two_shot", 4);
  const Bounds bounds = bounds_of(plan, 6, 4);
  ASSERT_EQ(bounds.output.size(), 4U);
  EXPECT_EQ(bounds.output[0].count, 2U);
  EXPECT_EQ(bounds.output[1].count, 2U);
  EXPECT_EQ(bounds.output[2].count, 1U);
  EXPECT_EQ(bounds.output[3].count, 1U);
}

TEST(Bounds, no_chunk_is_empty_if_there_are_enough_elements) {
  for (const int size : {2, 3, 5, 8, 17}) {
    const Plan plan = whole_plan(Collective::kAllReduce, "two_shot", size);
    for (std::size_t count = static_cast<std::size_t>(size); count < 600; ++count) {
      for (const Range& range : bounds_of(plan, count, 4).input) ASSERT_GT(range.count, 0U) << size << " " << count;
    }
  }
}

TEST(Bounds, parts_of_several_chunks_are_split_like_the_undivided_side) {
  Plan plan;
  plan.collective = Collective::kAllGather;
  plan.size = 2;
  plan.input_chunks = 2;
  plan.output_chunks = 4;
  const Bounds bounds = bounds_of(plan, 100, 8);
  for (std::size_t part = 0; part < 2; ++part) {
    for (std::size_t c = 0; c < 2; ++c) {
      EXPECT_EQ(bounds.output[part * 2 + c].first, part * 100 + bounds.input[c].first);
      EXPECT_EQ(bounds.output[part * 2 + c].count, bounds.input[c].count);
    }
  }
}

TEST(Bounds, a_barrier_has_no_bounds) {
  const Bounds bounds = bounds_of(whole_plan(Collective::kBarrier, "direct", 4), 0, 4);
  EXPECT_TRUE(bounds.input.empty());
  EXPECT_TRUE(bounds.output.empty());
  EXPECT_EQ(bounds.longest, 0U);
}

}  // namespace
}  // namespace accord::plan
