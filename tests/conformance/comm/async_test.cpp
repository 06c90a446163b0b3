// Started works progress on their own; groups are independent of each other; a split is independent of its parent.
#include <gtest/gtest.h>

#include "ranks/thread_ranks.hpp"

namespace accord {
namespace {

using testing::run_thread_ranks;

class Async : public ::testing::TestWithParam<std::string> {
 protected:
  CommunicatorOptions options() const {
    CommunicatorOptions options;
    options.timeout = std::chrono::seconds(60);
    options.transport = GetParam();
    return options;
  }
};

TEST_P(Async, many_works_in_flight_complete_in_order_with_correct_sums) {
  run_thread_ranks(3, options(), [](Communicator comm) {
    std::vector<std::vector<float>> buffers;
    std::vector<Work> works;
    for (int i = 0; i < 100; ++i) buffers.emplace_back(1 + i * 97, static_cast<float>(comm.rank() + i));
    for (auto& values : buffers)
      works.push_back(comm.all_reduce_async(Buffer{values.data(), values.size(), DType::kFloat32}, ReduceOp::kSum));
    ASSERT_TRUE(works.back().wait().ok());
    for (int i = 0; i < 100; ++i) {
      ASSERT_TRUE(works[i].test()) << "a later work of the same communicator ended before work " << i;
      ASSERT_TRUE(works[i].wait().ok());
      for (const float value : buffers[i]) ASSERT_EQ(value, static_cast<float>(3 + 3 * i));
    }
  });
}

TEST_P(Async, works_of_two_communicators_started_in_opposite_orders_complete) {
  run_thread_ranks(2, options(), [](Communicator comm) {
    Result<std::optional<Communicator>> other = comm.split(0, comm.rank(), "other");
    ASSERT_TRUE(other.ok()) << other.status().to_string();
    for (int round = 0; round < 50; ++round) {
      std::vector<float> a(70000, 1), b(70000, 2);
      const auto start = [&](Communicator& on, std::vector<float>& values) {
        return on.all_reduce_async(Buffer{values.data(), values.size(), DType::kFloat32}, ReduceOp::kSum);
      };
      std::vector<Work> works;
      if (comm.rank() == 0) {
        works.push_back(start(comm, a));
        works.push_back(start(**other, b));
      } else {
        works.push_back(start(**other, b));
        works.push_back(start(comm, a));
      }
      for (Work& work : works) ASSERT_TRUE(work.wait().ok());
      ASSERT_EQ(a, std::vector<float>(70000, 2));
      ASSERT_EQ(b, std::vector<float>(70000, 4));
    }
  });
}

TEST_P(Async, a_work_makes_progress_without_any_call) {
  run_thread_ranks(2, options(), [](Communicator comm) {
    std::vector<float> values(1 << 20, 1);
    Work work = comm.all_reduce_async(Buffer{values.data(), values.size(), DType::kFloat32}, ReduceOp::kSum);
    const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (!work.test() && std::chrono::steady_clock::now() < limit) std::this_thread::yield();
    ASSERT_TRUE(work.test());
    ASSERT_EQ(values, std::vector<float>(1 << 20, 2));
  });
}

TEST_P(Async, a_synchronous_call_waits_for_the_works_before_it) {
  run_thread_ranks(2, options(), [](Communicator comm) {
    for (int round = 0; round < 400; ++round) {
      // The caller itself drives small works as far as it can; large ones belong to the progress thread from the
      // start.
      std::vector<float> first(round % 2 == 0 ? 1 : 4096, 1);
      float second = 10;
      Work work = comm.all_reduce_async(Buffer{first.data(), first.size(), DType::kFloat32}, ReduceOp::kSum);
      ASSERT_TRUE(comm.all_reduce(Buffer{&second, 1, DType::kFloat32}, ReduceOp::kSum).ok());
      ASSERT_TRUE(work.test());
      ASSERT_EQ(first, std::vector<float>(first.size(), 2));
      ASSERT_EQ(second, 20);
    }
  });
}

TEST_P(Async, several_threads_of_one_rank_may_call_concurrently) {
  run_thread_ranks(2, options(), [](Communicator comm) {
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t)
      threads.emplace_back([comm]() mutable {
        for (int i = 0; i < 100; ++i) {
          float value = 1;
          ASSERT_TRUE(comm.all_reduce(Buffer{&value, 1, DType::kFloat32}, ReduceOp::kSum).ok());
          ASSERT_EQ(value, 2);
        }
      });
    for (std::thread& thread : threads) thread.join();
  });
}

// A group of one waits for no other rank, so its threads collide as often as possible.
TEST_P(Async, calls_of_several_threads_run_one_after_another) {
  constexpr int kThreads = 4, kCalls = 20'000;
  run_thread_ranks(1, options(), [](Communicator comm) {
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t)
      threads.emplace_back([comm]() mutable {
        for (int i = 0; i < kCalls; ++i) ASSERT_TRUE(comm.barrier().ok());
      });
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(comm.counters().of(Collective::kBarrier).calls, std::uint64_t{kThreads} * kCalls);
  });
}

TEST_P(Async, a_work_outlives_its_communicator) {
  run_thread_ranks(2, options(), [](Communicator comm) {
    std::vector<float> values(50000, 1);
    std::optional<Communicator> dropped = comm.split(0, 0, "gone").value();
    Work work = dropped->all_reduce_async(Buffer{values.data(), values.size(), DType::kFloat32}, ReduceOp::kSum);
    dropped.reset();
    ASSERT_TRUE(work.wait().ok());
    ASSERT_EQ(values, std::vector<float>(50000, 2));
  });
}

TEST_P(Async, wait_for_times_out_without_cancelling) {
  run_thread_ranks(2, options(), [](Communicator comm) {
    if (comm.rank() == 0) {
      Work work = comm.barrier_async();
      ASSERT_EQ(work.wait_for(std::chrono::milliseconds(1)), std::nullopt);
      float go = 1;
      ASSERT_TRUE(comm.send(ConstBuffer(&go, 1, DType::kFloat32), 1).ok());
      ASSERT_TRUE(work.wait().ok());
    } else {
      float go = 0;
      ASSERT_TRUE(comm.recv(Buffer{&go, 1, DType::kFloat32}, 0).ok());
      ASSERT_TRUE(comm.barrier().ok());
    }
  });
}

TEST_P(Async, split_orders_by_key_and_outlives_its_parent) {
  std::vector<int> sums(6, 0);
  run_thread_ranks(6, options(), [&](Communicator comm) {
    const Rank rank = comm.rank();
    std::optional<Communicator> part;
    {
      Result<std::optional<Communicator>> made = comm.split(rank == 5 ? -1 : rank % 2, -rank, "part");
      ASSERT_TRUE(made.ok()) << made.status().to_string();
      part = *made;
      comm.close();
    }
    if (rank == 5) {
      ASSERT_FALSE(part.has_value());
      return;
    }
    // The even ranks 0 2 4 in reverse order, 4 2 0; the odd ranks 1 3 as 3 1.
    const std::vector<int> expected = {2, 1, 1, 0, 0};
    ASSERT_EQ(part->rank(), expected[rank]);
    ASSERT_EQ(part->size(), rank % 2 == 0 ? 3 : 2);
    std::int32_t value = rank;
    ASSERT_TRUE(part->all_reduce(Buffer{&value, 1, DType::kInt32}, ReduceOp::kSum).ok());
    ASSERT_EQ(value, rank % 2 == 0 ? 6 : 4);
  });
}

INSTANTIATE_TEST_SUITE_P(All, Async, ::testing::Values("inproc", "shm", "ucx"),
                         [](const auto& param) { return param.param; });

}  // namespace
}  // namespace accord
