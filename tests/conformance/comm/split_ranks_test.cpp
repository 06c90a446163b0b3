// Groups created by the ranks in a list, and by no others, on every transport.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <numeric>

#include "ranks/thread_ranks.hpp"

namespace accord {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using testing::run_thread_ranks;

class SplitByRanks : public ::testing::TestWithParam<std::string> {
 protected:
  CommunicatorOptions options() const {
    CommunicatorOptions options;
    options.name = "world";
    options.timeout = std::chrono::seconds(20);
    options.transport = GetParam();
    return options;
  }
};

CommunicatorOptions impatient(std::string name) {
  return {.name = std::move(name), .timeout = std::chrono::milliseconds(200)};
}

/// Returns the sum of all members' `value`.
std::int64_t sum_of(Communicator& comm, std::int64_t value) {
  const Status status = comm.all_reduce(Buffer{&value, 1, DType::kInt64}, ReduceOp::kSum);
  EXPECT_TRUE(status.ok()) << status.to_string();
  return value;
}

/// Returns the ranks in `world` of all members of `group`.
std::vector<std::int64_t> members_of(Communicator& group, const Communicator& world) {
  const std::int64_t mine = world.rank();
  std::vector<std::int64_t> all(static_cast<std::size_t>(group.size()));
  const Status status =
      group.all_gather(ConstBuffer(&mine, 1, DType::kInt64), Buffer{all.data(), all.size(), DType::kInt64});
  EXPECT_TRUE(status.ok()) << status.to_string();
  return all;
}

TEST_P(SplitByRanks, the_new_rank_is_the_position_in_the_list_and_others_need_not_call) {
  run_thread_ranks(5, options(), [](Communicator world) {
    const std::vector<Rank> list = {4, 0, 3};
    const auto place = std::find(list.begin(), list.end(), world.rank());
    if (place == list.end()) return;
    Result<std::optional<Communicator>> made = world.split_ranks(list, "part");
    ASSERT_TRUE(made.ok()) << made.status().to_string();
    Communicator part = made->value();
    EXPECT_EQ(part.name(), "part");
    EXPECT_EQ(part.rank(), place - list.begin());
    EXPECT_EQ(members_of(part, world), (std::vector<std::int64_t>{4, 0, 3}));
  });
}

TEST_P(SplitByRanks, an_empty_list_gives_no_group_and_contacts_no_rank) {
  run_thread_ranks(2, options(), [](Communicator world) {
    if (world.rank() == 1) return;
    const Result<std::optional<Communicator>> none = world.split_ranks(std::span<const Rank>(), "none");
    ASSERT_TRUE(none.ok()) << none.status().to_string();
    EXPECT_FALSE(none->has_value());
  });
}

TEST_P(SplitByRanks, the_call_order_and_messages_of_the_parent_are_unaffected) {
  run_thread_ranks(3, options(), [](Communicator world) {
    // Ranks 0 and 2 create a group while a call of rank 0 on the parent waits for rank 2 and a message is in flight.
    std::int64_t sum = world.rank() + 1, sent = 7, got = 0;
    Work pending = Work(Status());
    if (world.rank() != 2) pending = world.all_reduce_async(Buffer{&sum, 1, DType::kInt64}, ReduceOp::kSum);
    Work message = Work(Status());
    if (world.rank() == 0) message = world.send_async(ConstBuffer(&sent, 1, DType::kInt64), 2);
    if (world.rank() != 1) {
      const std::vector<Rank> list = {2, 0};
      Result<std::optional<Communicator>> made = world.split_ranks(list, "pair");
      ASSERT_TRUE(made.ok()) << made.status().to_string();
      EXPECT_EQ(sum_of(**made, world.rank() + 1), 4);
    }
    if (world.rank() == 2) {
      ASSERT_TRUE(world.recv(Buffer{&got, 1, DType::kInt64}, 0).ok());
      EXPECT_EQ(got, 7);
      pending = world.all_reduce_async(Buffer{&sum, 1, DType::kInt64}, ReduceOp::kSum);
    }
    ASSERT_TRUE(pending.wait().ok());
    ASSERT_TRUE(message.wait().ok());
    EXPECT_EQ(sum, 6);
  });
}

TEST_P(SplitByRanks, threads_create_overlapping_groups_concurrently) {
  // Every pair of ranks creates its group on its own thread, several times; the threads may run in any order.
  constexpr int kSize = 4, kTimes = 3;
  run_thread_ranks(kSize, options(), [](Communicator world) {
    std::vector<std::thread> threads;
    for (Rank other = 0; other < kSize; ++other) {
      if (other == world.rank()) continue;
      threads.emplace_back([&world, other] {
        const std::vector<Rank> list = {std::min(world.rank(), other), std::max(world.rank(), other)};
        for (int times = 0; times < kTimes; ++times) {
          Result<std::optional<Communicator>> made = world.split_ranks(list, "pair");
          ASSERT_TRUE(made.ok()) << made.status().to_string();
          EXPECT_EQ(sum_of(**made, world.rank()), world.rank() + other);
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  });
}

TEST_P(SplitByRanks, many_groups_with_one_name_use_the_same_mailboxes) {
  run_thread_ranks(2, options(), [](Communicator world) {
    const std::vector<Rank> list = {1, 0};
    for (int times = 0; times < 100; ++times) {
      Result<std::optional<Communicator>> made = world.split_ranks(list, "again");
      ASSERT_TRUE(made.ok()) << made.status().to_string();
      if (times % 10 == 0) {
        ASSERT_EQ(sum_of(**made, times), 2 * times);
      }
    }
  });
}

TEST_P(SplitByRanks, parts_and_shrunk_groups_are_split_again) {
  run_thread_ranks(6, options(), [](Communicator world) {
    if (world.rank() == 1) return world.close();
    Result<Communicator> shrunk = world.shrink("rest");  // ranks 0 2 3 4 5 of the world
    ASSERT_TRUE(shrunk.ok()) << shrunk.status().to_string();
    const std::vector<Rank> four = {4, 3, 1, 0};  // ranks 5 4 2 0 of the world
    if (shrunk->rank() == 2) return;
    std::optional<Communicator> inner = shrunk->split_ranks(four, "four").value();
    const std::vector<Rank> two = {3, 1};  // ranks 0 4 of the world
    if (inner->rank() % 2 == 0) return;
    std::optional<Communicator> innermost = inner->split_ranks(two, "two").value();
    shrunk->close();
    inner->close();
    EXPECT_EQ(members_of(*innermost, world), (std::vector<std::int64_t>{0, 4}));
  });
}

TEST_P(SplitByRanks, an_invalid_list_is_rejected_immediately) {
  run_thread_ranks(3, options(), [](Communicator world) {
    if (world.rank() != 0) return;
    const auto refused = [&world](const std::vector<Rank>& list) {
      const Status status = world.split_ranks(list, "part").status();
      EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status.to_string();
      return status.message();
    };
    EXPECT_THAT(refused({1, 2}), HasSubstr("does not name rank 0"));
    EXPECT_THAT(refused({0, 1, 0}), HasSubstr("rank 0 twice"));
    EXPECT_THAT(refused({0, 3}), AllOf(HasSubstr("rank 3"), HasSubstr("ranks 0-2")));
    EXPECT_THAT(refused({-1, 0}), HasSubstr("rank -1"));
    EXPECT_EQ(world.split_ranks(std::vector<Rank>{0}, {.name = "part", .select = "all_reduce:0-inf=nonsense"})
                  .status()
                  .code(),
              StatusCode::kInvalidArgument);
    EXPECT_EQ(world.state(), CommunicatorState::kReady);
  });
}

TEST_P(SplitByRanks, lists_that_differ_are_a_mismatch_that_names_the_rank_on_all_listed_ranks) {
  std::atomic<int> failed = 0;
  run_thread_ranks(4, options(), [&failed](Communicator world) {
    // Ranks 0 and 1 disagree. Rank 2, which both lists name, arrives after they have failed and does not have to
    // wait.
    if (world.rank() == 3) return;
    if (world.rank() == 2)
      while (failed.load() < 2) std::this_thread::yield();
    const std::vector<Rank> list = world.rank() == 1 ? std::vector<Rank>{1, 0, 2} : std::vector<Rank>{0, 1, 2};
    const Status status = world.split_ranks(list, "part").status();
    ++failed;
    EXPECT_EQ(status.code(), StatusCode::kMismatch) << status.to_string();
    EXPECT_THAT(status.message(), AllOf(HasSubstr("\"part\""), HasSubstr("[1, 0, 2]"), HasSubstr("[0, 1, 2]")));
    EXPECT_EQ(status.ranks().size(), 1u);
    while (failed.load() < 3) std::this_thread::yield();
    Result<std::optional<Communicator>> agreed = world.split_ranks(std::vector<Rank>{0, 1, 2}, "another");
    ASSERT_TRUE(agreed.ok()) << agreed.status().to_string();
    EXPECT_EQ(sum_of(**agreed, 1), 3) << "they may try again, by another name";
  });
}

TEST_P(SplitByRanks, a_rank_that_never_calls_is_named_and_the_split_can_be_retried) {
  std::atomic<int> failed = 0;
  run_thread_ranks(3, options(), [&failed](Communicator world) {
    const std::vector<Rank> list = {0, 1, 2};
    if (world.rank() != 2) {
      const Status status = world.split_ranks(list, impatient("part")).status();
      EXPECT_EQ(status.code(), StatusCode::kTimeout) << status.to_string();
      EXPECT_EQ(status.ranks(), std::vector<Rank>{2});
      EXPECT_EQ(world.state(), CommunicatorState::kReady) << "the parent is as it was";
      ++failed;
    }
    while (failed.load() < 2) std::this_thread::yield();
    Result<std::optional<Communicator>> made = world.split_ranks(list, "part");
    ASSERT_TRUE(made.ok()) << made.status().to_string();
    EXPECT_EQ(sum_of(**made, 1), 3);
  });
}

TEST_P(SplitByRanks, a_rank_that_gives_up_fails_the_others_with_its_reason) {
  run_thread_ranks(3, options(), [](Communicator world) {
    if (world.rank() == 2) return (void)world.barrier();
    CommunicatorOptions options = impatient("part");
    if (world.rank() == 1) options.timeout = std::chrono::minutes(10);
    const Status status = world.split_ranks(std::vector<Rank>{0, 1, 2}, options).status();
    EXPECT_EQ(status.code(), StatusCode::kTimeout) << status.to_string();
    if (world.rank() == 1) {
      EXPECT_THAT(status.message(), HasSubstr("rank 0 gave up"));
    }
    EXPECT_TRUE(world.barrier().ok());
  });
}

TEST_P(SplitByRanks, a_listed_rank_that_closed_is_lost_and_named) {
  run_thread_ranks(3, options(), [](Communicator world) {
    if (world.rank() == 1) return world.close();
    const Status status = world.split_ranks(std::vector<Rank>{2, 1, 0}, "part").status();
    EXPECT_EQ(status.code(), StatusCode::kPeerLost) << status.to_string();
    EXPECT_THAT(status.ranks(), Contains(1)) << "and maybe the other one, which leaves after its failure";
    EXPECT_EQ(world.state(), CommunicatorState::kReady);
  });
}

TEST_P(SplitByRanks, a_failure_or_the_close_of_the_parent_ends_the_split) {
  run_thread_ranks(3, options(), [](Communicator world) {
    if (world.rank() == 2) return world.abort("enough");
    const Status status = world.split_ranks(std::vector<Rank>{0, 1, 2}, "part").status();
    EXPECT_EQ(status.code(), StatusCode::kAborted) << status.to_string();
    EXPECT_EQ(world.split_ranks(std::vector<Rank>{0, 1, 2}, "again").status().code(), StatusCode::kAborted);
  });
  run_thread_ranks(2, options(), [](Communicator world) {
    if (world.rank() == 1) return (void)world.barrier();
    std::thread closer([&world] { world.close(); });
    const Status status = world.split_ranks(std::vector<Rank>{0, 1}, "part").status();
    EXPECT_EQ(status.code(), StatusCode::kClosed) << status.to_string();
    closer.join();
  });
}

TEST_P(SplitByRanks, a_full_mailbox_ends_in_a_timeout) {
  std::atomic<bool> full = false;
  run_thread_ranks(2, options(), [&full](Communicator world) {
    const std::vector<Rank> list = {0, 1};
    const std::string name(200, 'x');
    if (world.rank() == 0) {
      for (int times = 0; times < 60; ++times) {
        const Status status = world.split_ranks(list, {.name = name, .timeout = std::chrono::milliseconds(2)}).status();
        ASSERT_EQ(status.code(), StatusCode::kTimeout) << status.to_string();
        ASSERT_EQ(status.ranks(), std::vector<Rank>{1});
      }
      full = true;
    }
    while (!full.load()) std::this_thread::yield();
    Result<std::optional<Communicator>> made = world.split_ranks(list, name);
    ASSERT_TRUE(made.ok()) << made.status().to_string();
    EXPECT_EQ(sum_of(**made, 1), 2);
  });
}

TEST_P(SplitByRanks, the_timeout_is_inherited_from_the_parent_unless_given) {
  CommunicatorOptions given = options();
  given.timeout = std::chrono::seconds(2);
  std::atomic<bool> timed_out = false;
  run_thread_ranks(2, given, [&timed_out](Communicator world) {
    const std::vector<Rank> list = {0, 1};
    std::optional<Communicator> heir = world.split_ranks(list, "heir").value();
    std::optional<Communicator> own =
        world.split_ranks(list, {.name = "own", .timeout = std::chrono::minutes(9)}).value();
    // Rank 0 waits in one group for rank 1, which arrives once the call on the other group has timed out.
    if (world.rank() == 0) {
      Work patient = own->barrier_async();
      EXPECT_EQ(heir->barrier().code(), StatusCode::kTimeout);
      timed_out = true;
      EXPECT_TRUE(patient.wait().ok());
    } else {
      while (!timed_out.load()) std::this_thread::yield();
      EXPECT_TRUE(own->barrier().ok());
    }
  });
}

TEST_P(SplitByRanks, rules_that_differ_are_a_mismatch_that_quotes_both) {
  run_thread_ranks(3, options(), [](Communicator world) {
    const std::string odd = "all_reduce:0-inf=two_shot";
    const auto part = [&](std::string name, bool differ) {
      return CommunicatorOptions{.name = std::move(name), .select = differ && world.rank() == 1 ? odd : ""};
    };
    const auto expect_mismatch = [&](const Status& status) {
      EXPECT_EQ(status.code(), StatusCode::kMismatch) << status.to_string();
      EXPECT_THAT(status.message(), AllOf(HasSubstr("select \"" + odd + "\""), HasSubstr("select \"\"")));
      if (world.rank() != 1) {
        EXPECT_EQ(status.ranks(), std::vector<Rank>{1});
      } else {
        EXPECT_EQ(status.ranks().size(), 1u);
        EXPECT_NE(status.ranks(), std::vector<Rank>{1});
      }
    };
    const std::vector<Rank> list = {1, 2, 0};
    expect_mismatch(world.split_ranks(list, part("part", true)).status());
    expect_mismatch(world.split(0, world.rank() == 1 ? 0 : 1, part("part", true)).status());
    Result<std::optional<Communicator>> made = world.split_ranks(list, part("another", false));
    ASSERT_TRUE(made.ok()) << made.status().to_string();
    EXPECT_EQ(sum_of(**made, 1), 3);
  });
}

TEST_P(SplitByRanks, a_rejected_rank_fails_the_others_immediately_including_late_ones) {
  CommunicatorOptions given = options();
  given.timeout = std::chrono::minutes(10);
  std::atomic<bool> refused = false;
  run_thread_ranks(3, given, [&refused](Communicator world) {
    const auto expect_lost = [&](const Status& status, const std::string& why) {
      EXPECT_EQ(status.code(), StatusCode::kPeerLost) << status.to_string();
      EXPECT_EQ(status.ranks(), std::vector<Rank>{1});
      EXPECT_THAT(status.message(), AllOf(HasSubstr("rank 1 gave up: "), HasSubstr(why)));
    };
    const std::vector<Rank> all = {0, 1, 2}, impossible = {0, 1, 2, 7};
    if (world.rank() == 1) {
      const Status status = world.split_ranks(all, {.name = "rules", .select = "nonsense"}).status();
      EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status.to_string();
      EXPECT_EQ(world.split_ranks(impossible, "list").status().code(), StatusCode::kInvalidArgument);
      refused = true;
    } else {
      while (world.rank() == 2 && !refused.load()) std::this_thread::yield();
      expect_lost(world.split_ranks(all, "rules").status(), "nonsense");
      expect_lost(world.split_ranks(all, "list").status(), "the list names rank 7");
    }
    // A split by color is a collective, in which the rejected rank takes part.
    const Status status = world.split(0, 0, {.name = "color", .select = world.rank() == 1 ? "nonsense" : ""}).status();
    if (world.rank() == 1) {
      EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status.to_string();
    } else {
      EXPECT_EQ(status.code(), StatusCode::kPeerLost) << status.to_string();
      EXPECT_EQ(status.ranks(), std::vector<Rank>{1});
      EXPECT_THAT(status.message(), HasSubstr("nonsense"));
    }
    ASSERT_TRUE(world.barrier().ok());
    Result<std::optional<Communicator>> made = world.split_ranks(all, "other rules");
    ASSERT_TRUE(made.ok()) << made.status().to_string();
    EXPECT_EQ(sum_of(**made, 1), 3) << "they may try again, by another name";
  });
}

TEST_P(SplitByRanks, each_rank_of_a_parent_splits_one_name_and_list_at_a_time) {
  constexpr int kThreads = 4;
  std::atomic<bool> refused = false;
  run_thread_ranks(2, options(), [&refused](Communicator world) {
    const std::vector<Rank> list = {0, 1};
    std::vector<Communicator> parents;
    for (int i = 0; i < kThreads; ++i) parents.push_back(*world.split(0, 0, "parent").value());
    std::vector<std::thread> threads;
    for (Communicator& parent : parents)
      threads.emplace_back([&] {
        Result<std::optional<Communicator>> made = parent.split_ranks(list, "same");
        ASSERT_TRUE(made.ok()) << made.status().to_string();
        EXPECT_EQ(sum_of(**made, 1), 2);
      });
    for (std::thread& thread : threads) thread.join();
    // Rank 1 arrives once a second thread of rank 0 has been rejected.
    if (world.rank() == 1) {
      while (!refused.load()) std::this_thread::yield();
      EXPECT_TRUE(world.split_ranks(list, "same").ok());
      return;
    }
    std::atomic<int> made = 0, wrong = 0;
    const auto split = [&] {
      const Status status = world.split_ranks(list, "same").status();
      made += status.ok() ? 1 : 0;
      if (status.ok()) return;
      ++wrong;
      EXPECT_EQ(status.code(), StatusCode::kWrongState) << status.to_string();
      EXPECT_THAT(status.message(), AllOf(HasSubstr("\"same\""), HasSubstr("another thread of this rank")));
      refused = true;
    };
    std::thread other(split);
    split();
    other.join();
    EXPECT_EQ(made.load(), 1);
    EXPECT_EQ(wrong.load(), 1);
  });
}

INSTANTIATE_TEST_SUITE_P(All, SplitByRanks, ::testing::Values("inproc", "shm"),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace accord
