// Ranks join a running group, on every transport.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>

#include "ranks/thread_ranks.hpp"

namespace accord {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::run_thread_ranks;

class Grow : public ::testing::TestWithParam<std::string> {
 protected:
  CommunicatorOptions options(std::string name, Duration timeout = std::chrono::seconds(20)) const {
    return {.name = std::move(name), .timeout = timeout, .transport = GetParam()};
  }
  const std::shared_ptr<Store> store_ = make_memory_store();
};

/// Returns the sum over the ranks of `value` times ten to the power of the rank.
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

TEST_P(Grow, a_shrunk_group_grows_one_rank_at_a_time) {
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

TEST_P(Grow, a_rank_that_does_not_join_is_named_and_the_growth_can_be_retried) {
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

TEST_P(Grow, an_unexpected_joiner_times_out_and_a_surplus_joiner_is_rejected) {
  const Status none = Communicator::join(store_, options("nobody", std::chrono::milliseconds(20))).status();
  EXPECT_EQ(none.code(), StatusCode::kTimeout) << none.to_string();
  EXPECT_THAT(none.message(), HasSubstr("no group of that name"));
}

TEST_P(Grow, members_that_request_different_numbers_are_a_mismatch) {
  run_thread_ranks(2, options("world"), [this](Communicator world) {
    const Status status = world.grow(store_, 1 + world.rank(), {.name = "grown"}).status();
    EXPECT_EQ(status.code(), StatusCode::kMismatch) << status.to_string();
    EXPECT_EQ(status.ranks(), std::vector<Rank>{1 - world.rank()});
    EXPECT_EQ(world.grow(store_, 0, {.name = "grown"}).status().code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(world.grow(nullptr, 1, {.name = "grown"}).status().code(), StatusCode::kInvalidArgument);
  });
}

TEST_P(Grow, a_member_that_is_rejected_or_gives_up_fails_the_others_immediately) {
  run_thread_ranks(2, options("world", std::chrono::minutes(10)), [this](Communicator world) {
    const auto expect_lost = [](const Status& status, const std::string& why) {
      EXPECT_EQ(status.code(), StatusCode::kPeerLost) << status.to_string();
      EXPECT_EQ(status.ranks(), std::vector<Rank>{1});
      EXPECT_THAT(status.message(), AllOf(HasSubstr("rank 1 gave up"), HasSubstr(why)));
    };
    if (world.rank() == 1) {
      EXPECT_EQ(world.grow(store_, 0, {.name = "one"}).status().code(), StatusCode::kInvalidArgument);
      EXPECT_EQ(world.grow(nullptr, 1, {.name = "two"}).status().code(), StatusCode::kInvalidArgument);
      const CommunicatorOptions nonsense{.name = "three", .select = "nonsense"};
      EXPECT_EQ(world.grow(store_, 1, nonsense).status().code(), StatusCode::kInvalidArgument);
      EXPECT_EQ(world.grow(store_, 1, {.name = "four", .timeout = std::chrono::milliseconds(100)}).status().code(),
                StatusCode::kTimeout);
    } else {
      expect_lost(world.grow(store_, 1, {.name = "one"}).status(), "0 ranks cannot be added; expected 1 to ");
      expect_lost(world.grow(store_, 1, {.name = "two"}).status(), "the store is null");
      expect_lost(world.grow(store_, 1, {.name = "three"}).status(), "nonsense");
      const Status status = world.grow(store_, 1, {.name = "four"}).status();
      EXPECT_EQ(status.code(), StatusCode::kTimeout) << status.to_string();
      EXPECT_THAT(status.message(), HasSubstr("rank 1 gave up"));
    }
    EXPECT_TRUE(world.barrier().ok()) << "the old group stays usable";
  });
}

TEST_P(Grow, a_joiner_of_an_abandoned_growth_fails_with_it) {
  std::thread joiner([this] {
    const Status status = Communicator::join(store_, options("grown", std::chrono::minutes(10))).status();
    EXPECT_EQ(status.code(), StatusCode::kPeerLost) << status.to_string();
    EXPECT_THAT(status.message(), AllOf(HasSubstr("\"grown\""), HasSubstr("gave up"), HasSubstr("did not arrive")));
  });
  run_thread_ranks(2, options("world"), [this](Communicator world) {
    const CommunicatorOptions soon{.name = "grown", .timeout = std::chrono::milliseconds(500)};
    EXPECT_EQ(world.grow(store_, 2, soon).status().code(), StatusCode::kTimeout);
  });
  joiner.join();
}

TEST_P(Grow, members_report_a_joiner_that_is_rejected_or_has_different_rules) {
  const auto join_when_shown = [this](std::string name, std::string select) {
    EXPECT_TRUE(store_->get("accord/" + name + "/growing", std::chrono::seconds(20)).ok());
    CommunicatorOptions given = options(name);
    given.select = std::move(select);
    return Communicator::join(store_, given).status();
  };
  std::thread joiner([&] {
    EXPECT_EQ(join_when_shown("one", "nonsense").code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(join_when_shown("two", "all_reduce:0-inf=two_shot").code(), StatusCode::kMismatch);
  });
  run_thread_ranks(2, options("world", std::chrono::minutes(10)), [this](Communicator world) {
    const Status lost = world.grow(store_, 1, {.name = "one"}).status();
    EXPECT_EQ(lost.code(), StatusCode::kPeerLost) << lost.to_string();
    EXPECT_EQ(lost.ranks(), std::vector<Rank>{2});
    EXPECT_THAT(lost.message(), HasSubstr("nonsense"));
    const Status differs = world.grow(store_, 1, {.name = "two"}).status();
    EXPECT_EQ(differs.code(), StatusCode::kMismatch) << differs.to_string();
    EXPECT_EQ(differs.ranks(), std::vector<Rank>{2});
  });
  joiner.join();
  EXPECT_EQ(Communicator::join(store_, {.name = "none", .select = "nonsense"}).status().code(),
            StatusCode::kInvalidArgument)
      << "at once, where no group grows";
}

TEST_P(Grow, corrupt_growth_records_in_the_store_are_rejected) {
  for (const char* text : {"", "1 2", "1 -1 5", "1 0 1", "0 1 1", "1 99999999999 5", "1 2 2147483647", "1 2 x"}) {
    ASSERT_TRUE(store_->set("accord/grown/growing", text).ok());
    const Status status = Communicator::join(store_, options("grown")).status();
    EXPECT_EQ(status.code(), StatusCode::kCorrupt) << text << ": " << status.to_string();
  }
}

INSTANTIATE_TEST_SUITE_P(All, Grow, ::testing::Values("inproc", "shm"), [](const auto& test) { return test.param; });

}  // namespace
}  // namespace accord
