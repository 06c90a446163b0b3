// Messages with tags: each goes to the first receive of its tag, whatever arrives before it, and none is lost, mixed
// up or waited for forever.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <deque>
#include <map>
#include <random>
#include <unordered_map>

#include "conformance/comm/messages.hpp"
#include "exec/domain.hpp"
#include "ranks/thread_ranks.hpp"
#include "sanitized.hpp"

namespace accord {
namespace {

using testing::content;
using testing::expect_message;
using ::testing::HasSubstr;
using testing::kMessageCounts;
using testing::run_thread_ranks;
using testing::send_message;
using testing::words;

class Tags : public ::testing::TestWithParam<std::string> {
 protected:
  CommunicatorOptions options() const { return testing::message_options(GetParam()); }
};

TEST_P(Tags, receives_in_a_different_order_than_the_sends_get_their_own_messages) {
  run_thread_ranks(2, options(), [](Communicator comm) {
    for (const std::size_t count : kMessageCounts)
      for (const std::vector<std::int32_t>& order :
           {std::vector{1, 2, 3}, {3, 2, 1}, {2, 3, 1}, {0, 1, 2}, {2, 1, 0}, {INT32_MAX, 0, 1}}) {
        if (comm.rank() == 0) {
          std::vector<std::int32_t> sorted = order;
          std::sort(sorted.begin(), sorted.end());
          for (const std::int32_t tag : sorted) send_message(comm, 1, tag, 0, count);
        } else {
          for (const std::int32_t tag : order) expect_message(comm, 0, tag, 0, count);
        }
      }
  });
}

// Small and large messages use different plans, which keep their words in different places.
TEST_P(Tags, messages_of_different_sizes_overtake_each_other) {
  run_thread_ranks(2, options(), [](Communicator comm) {
    for (const std::size_t first : kMessageCounts)
      for (const std::size_t second : kMessageCounts)
        for (const std::int32_t first_tag : {0, 4}) {
          const std::int32_t second_tag = 4 - first_tag;
          if (comm.rank() == 0) {
            send_message(comm, 1, first_tag, 0, first);
            send_message(comm, 1, second_tag, 1, second);
          } else {
            expect_message(comm, 0, second_tag, 1, second);
            expect_message(comm, 0, first_tag, 0, first);
          }
        }
  });
}

TEST_P(Tags, a_receive_completes_as_soon_as_its_own_message_arrives) {
  run_thread_ranks(2, options(), [](Communicator comm) {
    for (const std::size_t count : kMessageCounts)
      for (const std::int32_t first : {1, 0}) {  // a receive without a tag waits in a different way
        const std::int32_t second = first + 1;
        float go = 1;
        if (comm.rank() == 0) {
          send_message(comm, 1, first, 0, count);
          ASSERT_TRUE(comm.recv(Buffer{&go, 1, DType::kFloat32}, 1).ok());
          send_message(comm, 1, second, 0, count);
        } else {
          std::vector<std::uint32_t> of_first(count), of_second(count);
          Work late = comm.recv_async(words(of_second), 0, second);
          Work early = comm.recv_async(words(of_first), 0, first);
          ASSERT_TRUE(early.wait().ok());
          ASSERT_EQ(of_first, content(0, first, 0, count));
          ASSERT_FALSE(late.test());
          ASSERT_TRUE(comm.send(ConstBuffer(&go, 1, DType::kFloat32), 0).ok());
          ASSERT_TRUE(late.wait().ok());
          ASSERT_EQ(of_second, content(0, second, 0, count));
        }
      }
  });
}

TEST_P(Tags, a_stored_message_goes_to_a_receive_posted_while_another_one_waits) {
  run_thread_ranks(2, options(), [](Communicator comm) {
    for (const std::int32_t awaited : {0, 9}) {
      float go = 1;
      if (comm.rank() == 0) {
        send_message(comm, 1, 5, 0, 1000);
        send_message(comm, 1, 6, 0, 1000);
        ASSERT_TRUE(comm.recv(Buffer{&go, 1, DType::kFloat32}, 1).ok());
        send_message(comm, 1, awaited, 0, 3);
      } else {
        std::vector<std::uint32_t> values(3);
        Work waits = comm.recv_async(words(values), 0, awaited);
        expect_message(comm, 0, 6, 0, 1000);  // so the earlier message, of tag 5, is stored
        expect_message(comm, 0, 5, 0, 1000);
        ASSERT_FALSE(waits.test());
        ASSERT_TRUE(comm.send(ConstBuffer(&go, 1, DType::kFloat32), 0).ok());
        ASSERT_TRUE(waits.wait().ok());
        ASSERT_EQ(values, content(0, awaited, 0, 3));
      }
    }
  });
}

TEST_P(Tags, messages_of_one_tag_stay_in_order_and_match_receives_in_call_order) {
  run_thread_ranks(2, options(), [](Communicator comm) {
    constexpr int kEach = 40;
    if (comm.rank() == 0) {
      for (int number = 0; number < kEach; ++number)
        for (const std::int32_t tag : {3, 0, 8}) send_message(comm, 1, tag, number, 50);
    } else {
      for (int number = 0; number < kEach / 2; ++number) expect_message(comm, 0, 8, number, 50);
      std::vector<std::vector<std::uint32_t>> values(kEach, std::vector<std::uint32_t>(50));
      std::vector<Work> works;
      works.reserve(kEach);
      for (std::vector<std::uint32_t>& each : values) works.push_back(comm.recv_async(words(each), 0, 3));
      for (int number = kEach / 2; number < kEach; ++number) expect_message(comm, 0, 8, number, 50);
      for (int number = 0; number < kEach; ++number) expect_message(comm, 0, 0, number, 50);
      for (int number = 0; number < kEach; ++number) {
        ASSERT_TRUE(works[static_cast<std::size_t>(number)].wait().ok());
        ASSERT_EQ(values[static_cast<std::size_t>(number)], content(0, 3, number, 50));
      }
    }
  });
}

/// One message of a long exchange, as both its ranks know it.
struct Planned {
  std::int32_t tag = 0;
  int number = 0;
  std::size_t count = 0;
};

/// Returns the messages that rank `from` sends to rank `to`, in the order of sending.
std::vector<Planned> messages(Rank from, Rank to) {
  constexpr std::array<std::size_t, 5> kMixed = {0, 2, 40, 3000, 60'000};
  std::mt19937 random(static_cast<std::uint32_t>(100 * from + to));
  std::map<std::int32_t, int> numbers;
  std::vector<Planned> planned(testing::kSanitized ? 60 : 200);
  for (Planned& message : planned) {
    message.tag = static_cast<std::int32_t>(random() % 6);
    message.number = numbers[message.tag]++;
    message.count = kMixed[random() % kMixed.size()];
  }
  return planned;
}

/// Returns the same messages in another order, in which messages of the same tag keep their order.
std::vector<Planned> shuffled(const std::vector<Planned>& planned, std::uint32_t seed) {
  std::vector<std::int32_t> tags;
  std::map<std::int32_t, std::deque<Planned>> by_tag;
  for (const Planned& message : planned) {
    tags.push_back(message.tag);
    by_tag[message.tag].push_back(message);
  }
  std::shuffle(tags.begin(), tags.end(), std::mt19937(seed));
  std::vector<Planned> order;
  for (const std::int32_t tag : tags) {
    order.push_back(by_tag[tag].front());
    by_tag[tag].pop_front();
  }
  return order;
}

TEST_P(Tags, many_messages_between_several_pairs_arrive_in_any_order_of_receives) {
  constexpr int kSize = 3;
  run_thread_ranks(kSize, options(), [](Communicator comm) {
    const auto make = [&](Rank from, Rank to) {
      const bool sends = from == comm.rank();
      const std::vector<Planned> order =
          sends ? messages(from, to) : shuffled(messages(from, to), static_cast<std::uint32_t>(7 * from + to));
      std::mt19937 random(static_cast<std::uint32_t>(from + 10 * to + 1000));
      std::vector<std::vector<std::uint32_t>> memory;
      std::vector<Work> works;
      for (const Planned& message : order)
        memory.push_back(sends ? content(from, message.tag, message.number, message.count)
                               : std::vector<std::uint32_t>(message.count, 77));
      for (std::size_t i = 0; i < order.size(); ++i) {
        const Call call = sends ? Call::send(ConstBuffer(words(memory[i])), to, order[i].tag)
                                : Call::recv(words(memory[i]), from, order[i].tag);
        if (random() % 2 == 0) {
          works.push_back(comm.start(call));
        } else {
          const Status status = Communicator(comm).run(call);
          ASSERT_TRUE(status.ok()) << status.to_string();
        }
      }
      for (Work& work : works) ASSERT_TRUE(work.wait().ok());
      if (sends) return;
      for (std::size_t i = 0; i < order.size(); ++i)
        ASSERT_EQ(memory[i], content(from, order[i].tag, order[i].number, order[i].count)) << "receive " << i;
    };
    std::vector<std::thread> threads;
    for (Rank peer = 0; peer < kSize; ++peer) {
      if (peer == comm.rank()) continue;
      threads.emplace_back(make, comm.rank(), peer);
      threads.emplace_back(make, peer, comm.rank());
    }
    for (std::thread& thread : threads) thread.join();
    ASSERT_TRUE(comm.barrier().ok());
    std::uint64_t calls = 0;
    for (Rank peer = 0; peer < kSize; ++peer)
      if (peer != comm.rank()) calls += messages(comm.rank(), peer).size() + messages(peer, comm.rank()).size();
    EXPECT_EQ(comm.counters().of(Collective::kSendRecv).calls, calls);
  });
}

TEST_P(Tags, batches_and_prepared_calls_have_tags) {
  run_thread_ranks(2, options(), [](Communicator comm) {
    const Rank peer = 1 - comm.rank();
    std::vector<std::vector<std::uint32_t>> out, in(3, std::vector<std::uint32_t>(30'000));
    for (const std::int32_t tag : {10, 11, 12}) out.push_back(content(comm.rank(), tag, 0, 30'000));
    std::vector<Call> calls;
    for (std::size_t i = 0; i < 3; ++i) {
      calls.push_back(Call::send(ConstBuffer(words(out[i])), peer, static_cast<std::int32_t>(10 + i)));
      calls.push_back(Call::recv(words(in[2 - i]), peer, static_cast<std::int32_t>(12 - i)));
    }
    Result<Prepared> prepared = comm.prepare(calls);
    ASSERT_TRUE(prepared.ok());
    for (int round = 0; round < 10; ++round) {
      for (std::vector<std::uint32_t>& values : in) std::fill(values.begin(), values.end(), 0);
      const Status status = round % 2 == 0 ? prepared->run() : prepared->start().wait();
      ASSERT_TRUE(status.ok()) << status.to_string();
      for (std::size_t i = 0; i < 3; ++i) ASSERT_EQ(in[i], content(peer, static_cast<std::int32_t>(10 + i), 0, 30'000));
    }
  });
}

TEST_P(Tags, tags_whose_round_words_collide_are_not_mixed_up) {
  std::unordered_map<std::uint32_t, std::int32_t> seen;
  std::int32_t one = 0, other = 0;
  for (std::int32_t tag = 1; other == 0; ++tag) {
    const auto [place, is_new] = seen.emplace(exec::history_after(1, exec::signature_with_tag(2, tag)), tag);
    if (is_new) continue;
    one = place->second;
    other = tag;
  }
  run_thread_ranks(2, options(), [&](Communicator comm) {
    if (comm.rank() == 0) {
      send_message(comm, 1, one, 0, 2);
      send_message(comm, 1, other, 0, 2);
    } else {
      expect_message(comm, 0, other, 0, 2);
      expect_message(comm, 0, one, 0, 2);
    }
  });
}

TEST_P(Tags, a_message_that_differs_from_its_receive_is_a_mismatch_whenever_it_arrives) {
  for (const bool kept : {true, false})
    for (const std::int32_t tag : {0, 6}) {
      run_thread_ranks(2, options(), [&](Communicator comm) {
        if (comm.rank() == 0) {
          send_message(comm, 1, tag, 0, 5);
          if (kept) send_message(comm, 1, tag + 1, 0, 1);
          return (void)comm.barrier();  // until the other rank has found the mismatch
        }
        if (kept) expect_message(comm, 0, tag + 1, 0, 1);
        std::vector<std::uint32_t> values(4);
        const Status status = comm.recv(words(values), 0, tag);
        ASSERT_EQ(status.code(), StatusCode::kMismatch) << status.to_string();
        EXPECT_EQ(status.ranks(), std::vector<Rank>{0});
        const std::string tag_text = tag == 0 ? "" : ", tag 6";
        EXPECT_THAT(status.message(), HasSubstr("rank 0 called send of 5 x uint32" + tag_text));
        EXPECT_THAT(status.message(), HasSubstr("rank 1 called recv of 4 x uint32" + tag_text));
      });
    }
}

TEST_P(Tags, a_missing_message_is_a_timeout_that_names_its_tag_and_the_messages_that_arrived) {
  std::atomic<bool> over = false;
  run_thread_ranks(2, options(), [&](Communicator comm) {
    if (comm.rank() == 0) {
      send_message(comm, 1, 4, 0, 2);
      send_message(comm, 1, 3, 0, 2);
      while (!over.load()) std::this_thread::yield();  // present, but sends no more
      return;
    }
    expect_message(comm, 0, 3, 0, 2);
    std::vector<std::uint32_t> values(2);
    CallOptions soon;
    soon.timeout = std::chrono::milliseconds(100);
    const Status status = comm.recv(words(values), 0, 2, soon);
    over = true;
    EXPECT_EQ(status.code(), StatusCode::kTimeout) << status.to_string();
    EXPECT_EQ(status.ranks(), std::vector<Rank>{0});
    EXPECT_THAT(status.message(), HasSubstr("recv from rank 0, tag 2, on group \"tp\""));
    EXPECT_THAT(status.message(), HasSubstr("tags 4"));
  });
}

TEST_P(Tags, messages_sent_before_the_sender_left_are_received) {
  run_thread_ranks(2, options(), [](Communicator comm) {
    if (comm.rank() == 0) {
      for (const std::int32_t tag : {1, 2, 0}) send_message(comm, 1, tag, 0, 2);
      return comm.close();
    }
    std::vector<std::uint32_t> values(2);
    expect_message(comm, 0, 0, 0, 2);
    expect_message(comm, 0, 2, 0, 2);
    const Status status = comm.recv(words(values), 0, 5);
    EXPECT_EQ(status.code(), StatusCode::kPeerLost) << status.to_string();
  });
}

TEST_P(Tags, a_negative_tag_is_rejected_immediately) {
  run_thread_ranks(2, options(), [](Communicator comm) {
    std::vector<std::uint32_t> values(2);
    const Status status = comm.send(ConstBuffer(words(values)), 1 - comm.rank(), -3);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(status.message(), HasSubstr("tag -3 is negative"));
    EXPECT_TRUE(comm.barrier().ok());
  });
}

INSTANTIATE_TEST_SUITE_P(All, Tags, ::testing::Values("inproc", "shm", "ucx"),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace accord
