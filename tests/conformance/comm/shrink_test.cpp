// The remaining ranks of a group become a group again, on every transport.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>

#include "ranks/thread_ranks.hpp"

namespace accord {
namespace {

using ::testing::HasSubstr;
using testing::run_thread_ranks;

class Shrink : public ::testing::TestWithParam<std::string> {
 protected:
  CommunicatorOptions options() const {
    CommunicatorOptions options;
    options.name = "tp";
    options.timeout = std::chrono::seconds(20);
    options.transport = GetParam();
    return options;
  }
};

/// Returns the sum of the members' `value`, which only a working group can compute.
float float_sum_of(Communicator& comm, float value) {
  const Status status = comm.all_reduce(Buffer{&value, 1, DType::kFloat32}, ReduceOp::kSum);
  EXPECT_TRUE(status.ok()) << status.to_string();
  return value;
}

TEST_P(Shrink, survivors_of_ranks_that_left_keep_their_order) {
  run_thread_ranks(6, options(), [](Communicator comm) {
    if (comm.rank() == 0 || comm.rank() == 3) return comm.close();
    Result<Communicator> rest = comm.shrink("rest");
    ASSERT_TRUE(rest.ok()) << rest.status().to_string();
    EXPECT_EQ(rest->name(), "rest");
    EXPECT_EQ(rest->size(), 4);
    const int place[] = {-1, 0, 1, -1, 2, 3};
    EXPECT_EQ(rest->rank(), place[comm.rank()]);
    EXPECT_EQ(float_sum_of(*rest, static_cast<float>(comm.rank())), 1 + 2 + 4 + 5);
  });
}

TEST_P(Shrink, all_ranks_continue_after_one_aborted) {
  run_thread_ranks(3, options(), [](Communicator comm) {
    if (comm.rank() == 1) comm.abort("the loss is NaN");
    float value = 1;
    ASSERT_EQ(comm.all_reduce(Buffer{&value, 1, DType::kFloat32}, ReduceOp::kSum).code(), StatusCode::kAborted);
    Result<Communicator> rest = comm.shrink("again");
    ASSERT_TRUE(rest.ok()) << rest.status().to_string();
    EXPECT_EQ(comm.state(), CommunicatorState::kFailed) << "the old one is unchanged";
    comm.close();
    EXPECT_EQ(float_sum_of(*rest, 1), 3);
  });
}

TEST_P(Shrink, a_group_shrinks_until_one_rank_is_left) {
  run_thread_ranks(5, options(), [](Communicator comm) {
    for (int left = 4; left >= 1; --left) {
      if (comm.rank() == 0) return comm.close();
      Result<Communicator> rest = comm.shrink("left" + std::to_string(left));
      ASSERT_TRUE(rest.ok()) << rest.status().to_string();
      ASSERT_EQ(rest->size(), left);
      ASSERT_EQ(float_sum_of(*rest, 1), static_cast<float>(left));
      comm = std::move(*rest);
    }
  });
}

TEST_P(Shrink, a_rank_that_does_not_call_is_excluded_and_notified_when_it_calls) {
  std::atomic<int> shrunk = 0;
  run_thread_ranks(4, options(), [&](Communicator comm) {
    CallOptions patience;
    patience.timeout = std::chrono::milliseconds(300);
    if (comm.rank() == 2) {
      while (shrunk.load() < 3) std::this_thread::yield();
      const Status status = comm.shrink("rest", patience).status();
      EXPECT_EQ(status.code(), StatusCode::kAborted) << status.to_string();
      EXPECT_EQ(status.ranks(), std::vector<Rank>{2});
      EXPECT_THAT(status.message(), HasSubstr("continued without this one"));
      return;
    }
    Result<Communicator> rest = comm.shrink("rest", patience);
    ++shrunk;
    ASSERT_TRUE(rest.ok()) << rest.status().to_string();
    EXPECT_EQ(rest->size(), 3);
    EXPECT_EQ(float_sum_of(*rest, 1), 3);
  });
}

TEST_P(Shrink, patience_may_be_infinite) {
  run_thread_ranks(3, options(), [](Communicator comm) {
    CallOptions patience;
    patience.timeout = Duration::max();
    Result<Communicator> rest = comm.shrink("rest", patience);
    ASSERT_TRUE(rest.ok()) << rest.status().to_string();
    EXPECT_EQ(float_sum_of(*rest, 1), 3);
  });
}

TEST_P(Shrink, is_rejected_the_second_time_and_after_close) {
  run_thread_ranks(2, options(), [](Communicator comm) {
    ASSERT_TRUE(comm.shrink("first").ok());
    const Status again = comm.shrink("second").status();
    EXPECT_EQ(again.code(), StatusCode::kWrongState) << again.to_string();
    EXPECT_THAT(again.message(), HasSubstr("\"tp\""));
    comm.close();
    EXPECT_EQ(comm.shrink("third").status().code(), StatusCode::kClosed);
  });
}

TEST_P(Shrink, close_ends_a_waiting_shrink) {
  std::atomic<bool> waiting = false;
  run_thread_ranks(2, options(), [&](Communicator comm) {
    if (comm.rank() == 1) {
      while (!waiting.load()) std::this_thread::yield();
      return;  // stays until the other rank has closed, and never calls
    }
    std::thread closer([&comm, &waiting] {
      comm.close();
      waiting = true;
    });
    const Status status = comm.shrink("rest").status();
    EXPECT_EQ(status.code(), StatusCode::kClosed) << status.to_string();
    closer.join();
  });
}

INSTANTIATE_TEST_SUITE_P(All, Shrink, ::testing::Values("inproc", "shm", "ucx"),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace accord
