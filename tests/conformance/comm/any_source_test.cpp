// Receiving from any source: no message is lost, no rank starves, and a receive ends once no rank can send any more.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <set>
#include <thread>

#include "conformance/comm/messages.hpp"
#include "ranks/thread_ranks.hpp"
#include "sanitized.hpp"

namespace accord {
namespace {

using testing::content;
using testing::expect_message;
using ::testing::HasSubstr;
using testing::run_thread_ranks;
using testing::send_message;
using testing::words;

class AnySource : public ::testing::TestWithParam<std::string> {
 protected:
  CommunicatorOptions options() const { return testing::message_options(GetParam()); }
};

TEST_P(AnySource, each_message_with_the_tag_is_received_once_with_its_rank) {
  constexpr int kSize = 4, kEach = testing::kSanitized ? 8 : 24;
  run_thread_ranks(kSize, options(), [](Communicator comm) {
    for (const std::int32_t tag : {0, 3})
      for (const std::size_t count : testing::kMessageCounts) {
        ASSERT_TRUE(comm.barrier().ok());  // separates the messages of one size from those of the next
        if (comm.rank() > 0) {
          for (int number = 0; number < kEach; ++number) {
            if (number % 5 == comm.rank()) send_message(comm, 0, tag + 1, number, 300);  // in between, another tag
            send_message(comm, 0, tag, number, count);
          }
          continue;
        }
        std::vector<int> next(kSize, 0);
        for (int i = 0; i < (kSize - 1) * kEach; ++i) {
          std::vector<std::uint32_t> values(count, 77);
          const Result<Rank> source = comm.recv_any(words(values), tag);
          ASSERT_TRUE(source.ok()) << source.status().to_string();
          ASSERT_EQ(values, content(*source, tag, next[static_cast<std::size_t>(*source)]++, count));
        }
        EXPECT_EQ(next, (std::vector<int>{0, kEach, kEach, kEach}));
        for (Rank source = 1; source < kSize; ++source)
          for (int number = source; number < kEach; number += 5) expect_message(comm, source, tag + 1, number, 300);
      }
  });
}

TEST_P(AnySource, ranks_are_served_in_turn) {
  constexpr int kSize = 4, kEach = 10;
  run_thread_ranks(kSize, options(), [](Communicator comm) {
    if (comm.rank() > 0)
      for (int number = 0; number < kEach; ++number) send_message(comm, 0, 2, number, 2);
    ASSERT_TRUE(comm.barrier().ok());  // every message has been sent
    if (comm.rank() > 0) return;
    for (int turn = 0; turn < kEach; ++turn) {
      std::set<Rank> served;
      for (int i = 0; i < kSize - 1; ++i) {
        std::vector<std::uint32_t> values(2);
        const Result<Rank> source = comm.recv_any(words(values), 2);
        ASSERT_TRUE(source.ok()) << source.status().to_string();
        ASSERT_EQ(values, content(*source, 2, turn, 2));
        served.insert(*source);
      }
      ASSERT_EQ(served.size(), 3U) << "in turn " << turn;
    }
  });
}

TEST_P(AnySource, receives_from_one_rank_take_precedence_and_run_concurrently) {
  run_thread_ranks(3, options(), [](Communicator comm) {
    constexpr std::size_t kCount = 5000;
    if (comm.rank() == 1) {
      for (int number = 0; number < 2; ++number) send_message(comm, 0, 4, number, kCount);
      expect_message(comm, 0, 0, 0, 1);
      send_message(comm, 0, 8, 0, kCount);
    }
    if (comm.rank() != 0) return;
    std::vector<std::uint32_t> late(kCount), first(kCount), second(kCount);
    Work of_8 = comm.recv_async(words(late), 1, 8);
    Work of_4 = comm.recv_async(words(first), 1, 4);
    const Result<Rank> source = comm.recv_any(words(second), 4);
    ASSERT_TRUE(source.ok()) << source.status().to_string();
    EXPECT_EQ(*source, 1);
    EXPECT_EQ(second, content(1, 4, 1, kCount));
    ASSERT_TRUE(of_4.wait().ok());
    EXPECT_EQ(first, content(1, 4, 0, kCount));
    ASSERT_FALSE(of_8.test());
    send_message(comm, 1, 0, 0, 1);
    ASSERT_TRUE(of_8.wait().ok());
    EXPECT_EQ(late, content(1, 8, 0, kCount));
  });
}

TEST_P(AnySource, several_threads_may_receive_concurrently) {
  constexpr int kSize = 3, kEach = testing::kSanitized ? 20 : 60;
  run_thread_ranks(kSize, options(), [](Communicator comm) {
    if (comm.rank() > 0) {
      for (int number = 0; number < kEach; ++number)
        for (const std::int32_t tag : {0, 1, 2}) send_message(comm, 0, tag, number, 700);
      return;
    }
    std::atomic<int> received = 0;
    std::vector<std::thread> threads;
    // Two threads receive one tag each, while this thread receives the third tag from each rank.
    for (const std::int32_t tag : {1, 2})
      threads.emplace_back([&received, comm, tag]() mutable {
        std::vector<int> next(kSize, 0);
        for (int i = 0; i < 2 * kEach; ++i) {
          std::vector<std::uint32_t> values(700);
          const Result<Rank> source = comm.recv_any(words(values), tag);
          ASSERT_TRUE(source.ok()) << source.status().to_string();
          ASSERT_EQ(values, content(*source, tag, next[static_cast<std::size_t>(*source)]++, 700));
          ++received;
        }
      });
    for (int number = 0; number < kEach; ++number)
      for (const Rank source : {2, 1}) expect_message(comm, source, 0, number, 700);
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(received, 4 * kEach);
    EXPECT_EQ(comm.counters().of(Collective::kSendRecv).calls, std::uint64_t{6} * kEach);
  });
}

TEST_P(AnySource, it_times_out_when_no_rank_sends) {
  std::atomic<bool> over = false;
  run_thread_ranks(3, options(), [&](Communicator comm) {
    if (comm.rank() > 0) {
      while (!over.load()) std::this_thread::yield();  // present, but never sends
      return;
    }
    std::vector<std::uint32_t> values(2);
    CallOptions soon;
    soon.timeout = std::chrono::milliseconds(100);
    const Status status = comm.recv_any(words(values), 5, soon).status();
    over = true;
    EXPECT_EQ(status.code(), StatusCode::kTimeout) << status.to_string();
    EXPECT_EQ(status.ranks(), (std::vector<Rank>{1, 2}));
    EXPECT_THAT(status.message(),
                HasSubstr("recv_any of tag 5 on group \"tp\" (ranks 0-2): ranks 1 and 2 sent no message"));
    EXPECT_EQ(comm.state(), CommunicatorState::kFailed);
  });
}

TEST_P(AnySource, messages_sent_before_the_senders_left_are_received) {
  run_thread_ranks(3, options(), [](Communicator comm) {
    if (comm.rank() > 0) {
      send_message(comm, 0, 7, 0, 2);
      send_message(comm, 0, 6, 0, 2);
      return comm.close();
    }
    std::set<Rank> sources;
    for (int i = 0; i < 2; ++i) {
      std::vector<std::uint32_t> values(2);
      const Result<Rank> source = comm.recv_any(words(values), 6);
      ASSERT_TRUE(source.ok()) << source.status().to_string();
      EXPECT_EQ(values, content(*source, 6, 0, 2));
      sources.insert(*source);
    }
    EXPECT_EQ(sources, (std::set<Rank>{1, 2}));
    std::vector<std::uint32_t> values(2);
    const Status status = comm.recv_any(words(values), 6).status();
    EXPECT_EQ(status.code(), StatusCode::kPeerLost) << status.to_string();
  });
}

TEST_P(AnySource, an_abort_ends_it_and_invalid_arguments_and_messages_are_reported) {
  run_thread_ranks(2, options(), [](Communicator comm) {
    std::vector<std::uint32_t> values(4);
    EXPECT_EQ(comm.recv_any(words(values), -1).status().code(), StatusCode::kInvalidArgument);
    if (comm.rank() == 1) {
      send_message(comm, 0, 3, 0, 4);
      expect_message(comm, 0, 0, 0, 1);
      return comm.abort("enough");
    }
    ASSERT_TRUE(comm.recv_any(words(values), 3).ok());
    send_message(comm, 1, 0, 0, 1);
    const Status status = comm.recv_any(words(values), 3).status();
    EXPECT_EQ(status.code(), StatusCode::kAborted) << status.to_string();
    EXPECT_THAT(status.message(), HasSubstr("enough"));
  });
  run_thread_ranks(2, options(), [](Communicator comm) {
    if (comm.rank() == 1) {
      send_message(comm, 0, 3, 0, 5);
      return (void)comm.barrier();  // until the other rank has found the mismatch
    }
    std::vector<std::uint32_t> values(4);
    const Status status = comm.recv_any(words(values), 3).status();
    EXPECT_EQ(status.code(), StatusCode::kMismatch) << status.to_string();
    EXPECT_THAT(status.message(), HasSubstr("rank 1 called send of 5 x uint32, tag 3"));
  });
  run_thread_ranks(1, options(), [](Communicator comm) {
    std::vector<std::uint32_t> values(4);
    EXPECT_EQ(comm.recv_any(words(values)).status().code(), StatusCode::kInvalidArgument);
  });
}

INSTANTIATE_TEST_SUITE_P(All, AnySource, ::testing::Values("inproc", "shm", "ucx"),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace accord
