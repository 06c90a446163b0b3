// Several calls at once: messages in any order, collectives in the order of the list; and the report of a Work when it
// ends.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

#include "conformance/comm/planned.hpp"
#include "ranks/thread_ranks.hpp"

namespace accord {
namespace {

using testing::buffer;
using testing::combined;
using testing::kSizes;
using testing::PlannedCase;
using testing::run_thread_ranks;
using testing::samples;

class Together : public testing::Planned {};

/// Every rank sends `count` elements to every other rank and receives as many from it. The sends come first or last.
struct Exchange {
  std::vector<std::vector<float>> out, in;
  std::vector<Call> calls;

  Exchange(const Communicator& comm, std::size_t count, bool sends_first) {
    for (Rank peer = 0; peer < comm.size(); ++peer) {
      out.push_back(samples(comm.rank(), count, 100 * static_cast<std::size_t>(peer)));
      in.emplace_back(count, -1);
    }
    for (const bool sends : {sends_first, !sends_first})
      for (Rank step = 1; step < comm.size(); ++step) {
        const auto peer = static_cast<std::size_t>((comm.rank() + step) % comm.size());
        calls.push_back(sends ? Call::send(ConstBuffer(buffer(out[peer])), static_cast<Rank>(peer))
                              : Call::recv(buffer(in[peer]), static_cast<Rank>(peer)));
      }
  }

  void expect_arrived(const Communicator& comm) const {
    for (Rank peer = 0; peer < comm.size(); ++peer) {
      if (peer == comm.rank()) continue;
      const std::vector<float>& arrived = in[static_cast<std::size_t>(peer)];
      ASSERT_EQ(arrived, samples(peer, arrived.size(), 100 * static_cast<std::size_t>(comm.rank())));
    }
  }
};

TEST_P(Together, messages_between_all_ranks_need_no_order) {
  for (const int size : kSizes) {
    run_thread_ranks(size, options(), [](Communicator comm) {
      for (const std::size_t count : {0, 3, 5000, testing::kSanitized ? 40000 : 300000})
        for (const bool starts : {false, true}) {
          Exchange exchange(comm, count, comm.rank() % 2 == 0);
          const Status status = starts ? comm.start(exchange.calls).wait() : comm.run(exchange.calls);
          ASSERT_TRUE(status.ok()) << status.to_string();
          exchange.expect_arrived(comm);
        }
    });
  }
}

TEST_P(Together, collectives_run_in_the_order_of_the_list_among_messages_and_other_works) {
  run_thread_ranks(3, options(), [](Communicator comm) {
    for (int round = 0; round < 20; ++round) {
      std::vector<float> first = samples(comm.rank(), 5000), second, gathered(3 * 5000),
                         before = samples(comm.rank(), 70000);
      Exchange exchange(comm, 100, round % 2 == 0);
      Work earlier = comm.all_reduce_async(buffer(before), ReduceOp::kSum);
      std::vector<Call> calls = exchange.calls;
      calls.insert(calls.begin(), Call::all_reduce(ConstBuffer(buffer(first)), buffer(first), ReduceOp::kSum));
      calls.push_back(Call::all_gather(ConstBuffer(buffer(first)), buffer(gathered)));
      const Status status = comm.run(calls);
      ASSERT_TRUE(status.ok()) << status.to_string();
      ASSERT_TRUE(earlier.test()) << "a work that was started before had not ended";
      exchange.expect_arrived(comm);
      const std::vector<float> sum = combined(ReduceOp::kSum, 3, 5000);
      ASSERT_EQ(first, sum);
      for (int part = 0; part < 3; ++part)
        ASSERT_TRUE(std::equal(sum.begin(), sum.end(), gathered.begin() + part * 5000))
            << "the sum was gathered too early";
      ASSERT_EQ(before, combined(ReduceOp::kSum, 3, 70000));
    }
  });
}

TEST_P(Together, prepared_calls_run_any_number_of_times) {
  run_thread_ranks(3, options(), [](Communicator comm) {
    std::vector<float> values(5000), gathered(3), factor(1, 2);
    std::vector<std::size_t> counts = {1, 0, 2};
    std::vector<float> part(counts[static_cast<std::size_t>(comm.rank())], static_cast<float>(comm.rank()));
    Result<Prepared> scaled = comm.prepare(Call::all_reduce(ConstBuffer(buffer(values)), buffer(values),
                                                            Reduction::premul_sum(ConstBuffer(buffer(factor)))));
    Result<Prepared> parts = comm.prepare(Call::all_gather_v(ConstBuffer(buffer(part)), buffer(gathered), counts));
    Exchange exchange(comm, 300, comm.rank() == 1);
    Result<Prepared> messages = comm.prepare(exchange.calls);
    ASSERT_TRUE(scaled.ok() && parts.ok() && messages.ok());
    factor[0] = 99;  // read by prepare(), like the counts
    counts = {9, 9, 9};
    for (int round = 0; round < 20; ++round) {
      std::fill(values.begin(), values.end(), static_cast<float>(round));
      for (std::vector<float>& in : exchange.in) std::fill(in.begin(), in.end(), -1.0F);
      if (round % 2 == 0) {
        ASSERT_TRUE(scaled->run().ok() && parts->run().ok() && messages->run().ok());
      } else {
        std::vector<Work> works = {scaled->start(), parts->start(), messages->start()};
        for (Work& work : works) ASSERT_TRUE(work.wait().ok());
      }
      ASSERT_EQ(values, std::vector<float>(5000, static_cast<float>(6 * round)));
      ASSERT_EQ(gathered, (std::vector<float>{0, 2, 2}));
      exchange.expect_arrived(comm);
    }
  });
}

TEST_P(Together, a_repeated_call_is_checked_and_planned_like_the_first) {
  run_thread_ranks(2, options(), [](Communicator comm) {
    std::vector<float> values(3000), sums(3000);
    const auto sum_of = [&](std::size_t count, float value) {
      std::fill_n(values.begin(), count, value);
      return comm.all_reduce(ConstBuffer(values.data(), count, DType::kFloat32),
                             Buffer{sums.data(), count, DType::kFloat32}, ReduceOp::kSum);
    };
    for (int round = 0; round < 3; ++round) {
      for (const float value : {1.0F, 2.0F, 3.0F}) {
        ASSERT_TRUE(sum_of(7, value).ok());
        ASSERT_EQ(sums[6], 2 * value);
      }
      EXPECT_EQ(comm.all_reduce(ConstBuffer(values.data(), 7, DType::kFloat32), Buffer{nullptr, 7, DType::kFloat32},
                                ReduceOp::kSum)
                    .code(),
                StatusCode::kInvalidArgument);
      // More plans than the cache keeps, so that the plan of the call above is created again.
      for (std::size_t count = 100; count < 400; ++count) {
        const ConstBuffer in(values.data(), count, DType::kFloat32);
        Result<Prepared> other =
            comm.prepare(Call::all_reduce(in, Buffer{sums.data(), count, DType::kFloat32}, ReduceOp::kMax));
        ASSERT_TRUE(other.ok() && other->run().ok());
      }
      ASSERT_TRUE(sum_of(7, 5).ok());
      ASSERT_EQ(sums[0], 10);
    }
  });
}

TEST_P(Together, prepared_calls_are_rejected_when_the_group_has_failed_or_closed) {
  run_thread_ranks(1, options(), [](Communicator comm) {
    std::vector<float> values(3);
    const Call call = Call::all_reduce(ConstBuffer(buffer(values)), buffer(values), ReduceOp::kSum);
    Result<Prepared> prepared = comm.prepare(call);
    ASSERT_TRUE(prepared.ok());
    EXPECT_EQ(comm.prepare(Call::send(ConstBuffer(buffer(values)), 1)).status().message(),
              "send on group \"world\" (rank 0): peer 1 is not a rank of the group, which has ranks 0 to 0");
    comm.abort("enough");
    EXPECT_EQ(prepared->run().code(), StatusCode::kAborted);
    EXPECT_EQ(prepared->start().wait().code(), StatusCode::kAborted);
    comm.close();
    EXPECT_EQ(prepared->run().code(), StatusCode::kAborted);
  });
}

TEST_P(Together, one_invalid_call_prevents_the_whole_list_from_starting) {
  run_thread_ranks(2, options(), [](Communicator comm) {
    std::vector<float> values = samples(comm.rank(), 4);
    const std::vector<Call> calls = {Call::all_reduce(ConstBuffer(buffer(values)), buffer(values), ReduceOp::kSum),
                                     Call::send(ConstBuffer(buffer(values)), 2)};
    const std::string expected =
        "call 2 of 2: send on group \"world\" (ranks 0 and 1): peer 2 is not a rank of the group, which has ranks 0 to "
        "1";
    EXPECT_EQ(comm.run(calls).message(), expected);
    EXPECT_EQ(comm.start(calls).wait().message(), expected);
    EXPECT_EQ(values, samples(comm.rank(), 4));
    EXPECT_TRUE(comm.run(std::span<const Call>()).ok());
    EXPECT_TRUE(comm.start(std::span<const Call>()).wait().ok());
    EXPECT_TRUE(comm.barrier().ok());
  });
}

TEST_P(Together, a_missing_message_fails_the_list_and_names_the_rank) {
  std::atomic<bool> failed = false;
  run_thread_ranks(2, options(), [&](Communicator comm) {
    if (comm.rank() == 1) {
      while (!failed.load()) std::this_thread::yield();  // present, but never sends
      return;
    }
    std::vector<float> there(10), here(10);
    CallOptions call;
    call.timeout = std::chrono::milliseconds(200);
    const std::vector<Call> calls = {Call::send(ConstBuffer(buffer(there)), 1), Call::recv(buffer(here), 1)};
    const Status status = comm.run(calls, call);
    EXPECT_EQ(status.code(), StatusCode::kTimeout) << status.to_string();
    EXPECT_EQ(status.ranks(), std::vector<Rank>{1});
    failed = true;
  });
}

TEST_P(Together, callbacks_are_called_once_in_order_with_the_status_of_the_work) {
  run_thread_ranks(2, options(), [](Communicator comm) {
    std::mutex mutex;
    std::condition_variable called;
    std::vector<int> order;
    std::vector<float> values(50000, 1);
    Work work = comm.all_reduce_async(buffer(values), ReduceOp::kSum);
    for (const int i : {1, 2, 3})
      work.on_end([&, i](const Status& status) {
        const std::lock_guard lock(mutex);
        order.push_back(status.ok() ? i : -i);
        called.notify_all();
      });
    {
      std::unique_lock lock(mutex);
      called.wait(lock, [&] { return order.size() == 3; });
    }
    EXPECT_EQ(order, (std::vector<int>{1, 2, 3}));
    ASSERT_TRUE(work.status().has_value());
    EXPECT_TRUE(work.status()->ok());
    bool at_once = false;
    work.on_end([&](const Status& status) { at_once = status.ok(); });
    EXPECT_TRUE(at_once);
    ASSERT_TRUE(comm.barrier().ok());
  });
}

TEST_P(Together, a_callback_reports_a_failure_and_status_is_pending_until_then) {
  std::atomic<bool> failed = false;
  run_thread_ranks(2, options(), [&](Communicator comm) {
    if (comm.rank() == 1) {
      while (!failed.load()) std::this_thread::yield();
      return;
    }
    std::vector<float> values(10, 1);
    Work work = comm.all_reduce_async(buffer(values), ReduceOp::kSum);
    EXPECT_FALSE(work.status().has_value());
    std::atomic<StatusCode> code = StatusCode::kOk;
    work.on_end([&](const Status& status) { code = status.code(); });
    comm.abort("enough");
    while (code.load() == StatusCode::kOk) std::this_thread::yield();
    EXPECT_EQ(code.load(), StatusCode::kAborted);
    failed = true;
  });
}

TEST_P(Together, a_callback_may_start_operations_but_not_wait_for_them) {
  run_thread_ranks(2, options(), [](Communicator comm) {
    std::mutex mutex;
    std::condition_variable called;
    std::vector<Status> seen;
    std::vector<float> values(50000, 1), more(50000, 1), listed(4, 1);
    std::optional<Work> second;
    Work first = comm.all_reduce_async(buffer(values), ReduceOp::kSum);
    Work last = comm.all_reduce_async(buffer(more), ReduceOp::kSum);  // a wait in the callback would block behind it
    // Whether this thread runs the callback, because the work had already ended. This thread may wait.
    bool here = true;
    const std::thread::id me = std::this_thread::get_id();
    first.on_end([&](const Status&) {
      const std::lock_guard lock(mutex);
      here = std::this_thread::get_id() == me;
      if (!here) {
        second.emplace(comm.barrier_async());
        seen.push_back(second->wait());
        seen.push_back(second->wait_for(std::chrono::seconds(60)).value());
        seen.push_back(comm.barrier());
        const std::vector<Call> calls = {Call::all_reduce(ConstBuffer(buffer(listed)), buffer(listed), ReduceOp::kSum)};
        seen.push_back(comm.run(calls));
      }
      seen.emplace_back();
      called.notify_all();
    });
    std::unique_lock lock(mutex);
    called.wait(lock, [&] { return !seen.empty() && seen.back().ok(); });
    lock.unlock();
    for (std::size_t i = 0; i + 1 < seen.size(); ++i)
      EXPECT_EQ(seen[i].code(), StatusCode::kWrongState) << i << ": " << seen[i].to_string();
    EXPECT_TRUE(last.wait().ok());
    if (here) second.emplace(comm.barrier_async());
    EXPECT_TRUE(second->wait().ok());
    EXPECT_EQ(more, std::vector<float>(50000, 2));
    EXPECT_EQ(listed, std::vector<float>(4, 1)) << "a list that was refused was run";
  });
}

TEST_P(Together, threads_that_wait_for_works_of_one_group_in_any_order_all_return) {
  run_thread_ranks(2, options(), [](Communicator comm) {
    constexpr int kWorks = 60;
    std::vector<std::vector<float>> values;
    for (int i = 0; i < kWorks; ++i) values.emplace_back(i % 3 == 0 ? 2 : i % 3 == 1 ? 3000 : 40000, comm.rank() + i);
    std::vector<Work> works;
    for (std::vector<float>& value : values) works.push_back(comm.all_reduce_async(buffer(value), ReduceOp::kSum));
    std::vector<std::thread> threads;
    for (int t = 0; t < 3; ++t)
      threads.emplace_back([&works, t] {
        for (int i = 0; i < kWorks; ++i) {
          Work work = works[static_cast<std::size_t>(t == 0 ? i : t == 1 ? kWorks - 1 - i : (i * 7) % kWorks)];
          if (t == 2)
            while (!work.wait_for(std::chrono::microseconds(50)).has_value()) continue;
          const Status status = work.wait();
          EXPECT_TRUE(status.ok()) << status.to_string();
        }
      });
    for (std::thread& thread : threads) thread.join();
    for (int i = 0; i < kWorks; ++i) {
      const std::vector<float>& value = values[static_cast<std::size_t>(i)];
      ASSERT_EQ(value, std::vector<float>(value.size(), static_cast<float>(2 * i + 1))) << i;
    }
  });
}

TEST_P(Together, callbacks_of_two_groups_start_operations_on_each_other) {
  run_thread_ranks(2, options(), [](Communicator comm) {
    constexpr int kSteps = 200;
    Result<std::optional<Communicator>> second = comm.split(0, comm.rank(), "second");
    ASSERT_TRUE(second.ok()) << second.status().to_string();
    std::array<Communicator, 2> groups = {comm, **second};
    std::mutex mutex;
    std::condition_variable called;
    int ended = 0;
    const auto end = [&](const Status& status) {
      EXPECT_TRUE(status.ok()) << status.to_string();
      const std::lock_guard lock(mutex);
      ++ended;
      called.notify_all();
    };
    // Two chains, one started on each group; each step starts the next one on the other group. The chains do not run
    // in lockstep, so their messages have tags: matched by order, the operations would leave each rank waiting in the
    // group where the other rank is not.
    std::vector<float> sent(4, static_cast<float>(comm.rank()));
    std::array<std::vector<float>, 2> received = {std::vector<float>(4), std::vector<float>(4)};
    std::function<void(int, int)> step = [&](int chain, int number) {
      Communicator& group = groups[static_cast<std::size_t>((chain + number) % 2)];
      const Rank peer = 1 - group.rank();
      group.send_async(ConstBuffer(buffer(sent)), peer, chain).on_end(end);
      group.recv_async(buffer(received[static_cast<std::size_t>(chain)]), peer, chain)
          .on_end([&, chain, number](const Status& status) {
            if (number + 1 < kSteps) step(chain, number + 1);
            end(status);
          });
    };
    std::thread other([&] { step(1, 0); });
    step(0, 0);
    std::unique_lock lock(mutex);
    called.wait(lock, [&] { return ended == 2 * 2 * kSteps; });
    lock.unlock();
    other.join();
    for (const std::vector<float>& values : received)
      EXPECT_EQ(values, std::vector<float>(4, static_cast<float>(1 - comm.rank())));
  });
}

INSTANTIATE_TEST_SUITE_P(All, Together,
                         ::testing::Values(PlannedCase{"inproc", "inproc", ""}, PlannedCase{"shm", "shm", ""},
                                           PlannedCase{"ucx", "ucx", ""}),
                         testing::name_of);

}  // namespace
}  // namespace accord
