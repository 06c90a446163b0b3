// Ranks join a running group, on every transport.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>

#include "ranks/thread_ranks.hpp"

namespace accord {
namespace {

using ::testing::HasSubstr;
using testing::run_thread_ranks;

class Grow : public ::testing::TestWithParam<std::string> {
 protected:
  CommunicatorOptions options(std::string name, Duration timeout = std::chrono::seconds(20)) const {
    return {.name = std::move(name), .timeout = timeout, .transport = GetParam()};
  }
  const std::shared_ptr<Store> store_ = make_memory_store();
};

/// The sum over the ranks of `value` times ten to the power of the rank.
std::int64_t digits_of(Communicator& comm, std::int64_t value) {
  for (Rank r = 0; r < comm.rank(); ++r) value *= 10;
  const Status status = comm.all_reduce(Buffer{&value, 1, DType::kInt64}, ReduceOp::kSum);
  EXPECT_TRUE(status.ok()) << status.to_string();
  return value;
}

TEST_P(Grow, members_keep_their_ranks_and_joiners_follow) {
  std::vector<std::thread> joiners;
  for (int i = 0; i < 2; ++i)
    joiners.emplace_back([this] {
      Result<Communicator> joined = Communicator::join(store_, options("grown"));
      ASSERT_TRUE(joined.ok()) << joined.status().to_string();
      EXPECT_EQ(joined->size(), 5);
      EXPECT_EQ(joined->name(), "grown");
      EXPECT_GE(joined->rank(), 3);
      EXPECT_EQ(digits_of(*joined, 7), 77321);
    });
  run_thread_ranks(3, options("world"), [this](Communicator world) {
    Result<Communicator> grown = world.grow(store_, 2, {.name = "grown"});
    ASSERT_TRUE(grown.ok()) << grown.status().to_string();
    EXPECT_EQ(grown->rank(), world.rank());
    EXPECT_EQ(digits_of(*grown, world.rank() + 1), 77321);
    EXPECT_EQ(digits_of(world, world.rank() + 1), 321) << "the old one stays usable";
  });
  for (std::thread& joiner : joiners) joiner.join();
}

TEST_P(Grow, one_rank_at_a_time_after_a_shrink) {
  constexpr int kTimes = 3;
  std::thread joiner([this] {
    for (int times = 0; times < kTimes; ++times) {
      Result<Communicator> joined = Communicator::join(store_, options("again"));
      ASSERT_TRUE(joined.ok()) << joined.status().to_string();
      ASSERT_EQ(joined->rank(), 2);
      EXPECT_EQ(digits_of(*joined, 9), 911);
    }
  });
  run_thread_ranks(3, options("world"), [this](Communicator world) {
    if (world.rank() == 0) return;
    Result<Communicator> rest = world.shrink("rest");
    ASSERT_TRUE(rest.ok()) << rest.status().to_string();
    for (int times = 0; times < kTimes; ++times) {
      Result<Communicator> grown = rest->grow(store_, 1, {.name = "again"});
      ASSERT_TRUE(grown.ok()) << grown.status().to_string();
      EXPECT_EQ(digits_of(*grown, 1), 911);
    }
  });
  joiner.join();
}

TEST_P(Grow, a_rank_that_does_not_join_is_named_and_it_can_be_tried_again) {
  std::atomic<int> failed = 0;
  std::thread joiner;
  run_thread_ranks(2, options("world"), [&](Communicator world) {
    const CommunicatorOptions soon{.name = "grown", .timeout = std::chrono::milliseconds(300)};
    const Status status = world.grow(store_, 2, soon).status();
    EXPECT_EQ(status.code(), StatusCode::kTimeout) << status.to_string();
    if (world.rank() == 0) {
      EXPECT_EQ(status.ranks(), (std::vector<Rank>{2, 3}));
    }
    ++failed;
    while (failed.load() < 2) std::this_thread::yield();
    if (world.rank() == 0)
      joiner = std::thread([this] { EXPECT_TRUE(Communicator::join(store_, options("grown")).ok()); });
    const Result<Communicator> grown = world.grow(store_, 1, {.name = "grown"});
    EXPECT_TRUE(grown.ok()) << grown.status().to_string();
  });
  joiner.join();
}

TEST_P(Grow, a_joiner_that_nobody_waits_for_times_out_and_one_too_many_is_told_so) {
  const Status none = Communicator::join(store_, options("nobody", std::chrono::milliseconds(20))).status();
  EXPECT_EQ(none.code(), StatusCode::kTimeout) << none.to_string();
  EXPECT_THAT(none.message(), HasSubstr("no group of that name"));
}

TEST_P(Grow, members_that_want_different_numbers_are_a_mismatch) {
  run_thread_ranks(2, options("world"), [this](Communicator world) {
    const Status status = world.grow(store_, 1 + world.rank(), {.name = "grown"}).status();
    EXPECT_EQ(status.code(), StatusCode::kMismatch) << status.to_string();
    EXPECT_EQ(status.ranks(), std::vector<Rank>{1 - world.rank()});
    EXPECT_EQ(world.grow(store_, 0, {.name = "grown"}).status().code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(world.grow(nullptr, 1, {.name = "grown"}).status().code(), StatusCode::kInvalidArgument);
  });
}

INSTANTIATE_TEST_SUITE_P(All, Grow, ::testing::Values("inproc", "shm"), [](const auto& test) { return test.param; });

}  // namespace
}  // namespace accord
