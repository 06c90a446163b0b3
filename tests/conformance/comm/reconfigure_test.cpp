// Ranks form groups by each other's handles, on every transport.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <thread>

#include "comm/formation/handle.hpp"
#include "ranks/handle_board.hpp"
#include "ranks/thread_ranks.hpp"
#include "transport/tcp/call.hpp"

namespace accord {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using testing::HandleBoard;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class Reconfigure : public ::testing::TestWithParam<std::string> {
 protected:
  /// One rank of a test: who it is, and its present communicator.
  struct Member {
    int who = 0;
    Communicator comm;
  };

  CommunicatorOptions options() const {
    return {.name = "elastic", .timeout = std::chrono::seconds(30), .transport = GetParam()};
  }

  /// Runs `body` for `count` ranks, each a thread with a communicator of its own.
  void run(int count, const std::function<void(Member)>& body) {
    std::vector<std::thread> threads;
    for (int who = 0; who < count; ++who)
      threads.emplace_back([this, who, &body] {
        Result<Communicator> alone = Communicator::alone(options());
        ASSERT_TRUE(alone.ok()) << alone.status().to_string();
        body({who, std::move(*alone)});
      });
    for (std::thread& thread : threads) thread.join();
  }

  std::vector<std::string> handles_of(int round, const std::vector<int>& members, const Member& member) {
    const Result<std::string> mine = member.comm.handle();
    EXPECT_TRUE(mine.ok()) << mine.status().to_string();
    return board_.gather(round, members, member.who, mine.ok() ? *mine : "");
  }

  /// The ranks `members` form a group in that order, in round `round`, and compute in it.
  void form(int round, const std::vector<int>& members, Member& member) {
    const std::vector<std::string> handles = handles_of(round, members, member);
    Result<Communicator> formed = member.comm.reconfigure(uuid_of(round, members), handles);
    ASSERT_TRUE(formed.ok()) << member.who << ": " << formed.status().to_string();
    member.comm = std::move(*formed);
    const auto place = std::find(members.begin(), members.end(), member.who);
    EXPECT_EQ(member.comm.rank(), place - members.begin());
    check_members(member, members);
  }

  /// Gathers who the ranks are, which only a working group can do.
  void check_members(Member& member, const std::vector<int>& members) {
    ASSERT_EQ(member.comm.size(), static_cast<int>(members.size()));
    std::vector<std::int32_t> all(members.size(), -1);
    const std::int32_t who = member.who;
    const Status status =
        member.comm.all_gather(ConstBuffer(&who, 1, DType::kInt32), Buffer{all.data(), all.size(), DType::kInt32});
    ASSERT_TRUE(status.ok()) << status.to_string();
    EXPECT_THAT(all, ::testing::ElementsAreArray(members));
  }

  static std::string uuid_of(int round, const std::vector<int>& members) {
    std::string uuid = "round " + std::to_string(round);
    for (const int member : members) uuid += " " + std::to_string(member);
    return uuid;
  }

  HandleBoard board_;
};

TEST_P(Reconfigure, ranks_alone_form_a_group_in_the_order_of_the_list) {
  run(3, [this](Member member) {
    EXPECT_EQ(member.comm.size(), 1);
    form(0, {2, 0, 1}, member);
    EXPECT_EQ(member.comm.name(), "elastic");
  });
}

TEST_P(Reconfigure, a_group_leaves_out_any_rank_and_takes_in_others) {
  run(5, [this](Member member) {
    const auto take_part = [&](int round, const std::vector<int>& members) {
      if (std::find(members.begin(), members.end(), member.who) != members.end()) form(round, members, member);
    };
    take_part(0, {0, 1, 2, 3});
    take_part(1, {0, 1, 2});  // without the last
    take_part(2, {0, 2});     // without the middle one
    take_part(3, {2, 4});     // without the first, and with one that is new
    take_part(4, {1, 4, 3, 2, 0});
    take_part(5, {1, 4, 3, 2, 0});  // the same ones again
  });
}

TEST_P(Reconfigure, a_group_falls_apart_and_merges_again) {
  run(4, [this](Member member) {
    form(0, {0, 1, 2, 3}, member);
    form(1, {member.who}, member);
    form(2, {0, 1, 2, 3}, member);
    form(3, member.who < 2 ? std::vector{0, 1} : std::vector{3, 2}, member);
    form(4, {0, 1, 2, 3}, member);
  });
}

TEST_P(Reconfigure, without_an_order_all_ranks_agree_on_one) {
  std::vector<std::atomic<int>> seen(4);
  run(4, [&](Member member) {
    std::vector<std::string> handles = handles_of(0, {0, 1, 2, 3}, member);
    std::rotate(handles.begin(), handles.begin() + member.who, handles.end());
    Result<Communicator> formed = member.comm.reconfigure("any order", handles, {.order = RankOrder::kAny});
    ASSERT_TRUE(formed.ok()) << formed.status().to_string();
    ++seen[static_cast<std::size_t>(formed->rank())];
    std::int32_t highest = member.who;
    const Status status = formed->all_reduce(Buffer{&highest, 1, DType::kInt32}, ReduceOp::kMax);
    ASSERT_TRUE(status.ok()) << status.to_string();
    EXPECT_EQ(highest, 3);
  });
  for (const std::atomic<int>& count : seen) EXPECT_EQ(count, 1);
}

TEST_P(Reconfigure, heals_after_an_abort_and_after_a_timeout) {
  run(3, [this](Member member) {
    form(0, {0, 1, 2}, member);
    (void)board_.gather(10, {0, 1, 2}, member.who, "");  // until all have left the calls of form()
    if (member.who == 1) member.comm.abort("the test wants it");
    std::int64_t value = 1;
    const Buffer buffer{&value, 1, DType::kInt64};
    ASSERT_EQ(member.comm.all_reduce(buffer, ReduceOp::kSum).code(), StatusCode::kAborted);
    form(1, {0, 1, 2}, member);
    (void)board_.gather(11, {0, 1, 2}, member.who, "");
    if (member.who != 2) {
      EXPECT_EQ(member.comm.all_reduce(buffer, ReduceOp::kSum, {.timeout = std::chrono::milliseconds(50)}).code(),
                StatusCode::kTimeout);
    }
    form(2, {0, 1, 2}, member);
  });
}

TEST_P(Reconfigure, the_old_communicator_stays_as_it_was) {
  run(2, [this](Member member) {
    form(0, {0, 1}, member);
    Member next = member;
    form(1, {1, 0}, next);
    check_members(member, {0, 1});
    EXPECT_EQ(member.comm.rank(), member.who);
    member.comm.close();
    check_members(next, {1, 0});
  });
}

TEST_P(Reconfigure, a_uuid_is_used_once) {
  run(2, [this](Member member) {
    form(0, {0, 1}, member);
    const std::vector<std::string> handles = handles_of(1, {0, 1}, member);
    const Status again = member.comm.reconfigure(uuid_of(0, {0, 1}), handles).status();
    EXPECT_EQ(again.code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(again.message(), HasSubstr("already used"));
    form(2, {0, 1}, member);
  });
}

TEST_P(Reconfigure, a_rank_that_has_not_used_the_uuid_learns_at_once_that_others_have) {
  run(3, [this](Member member) {
    if (member.who != 2) form(0, {0, 1}, member);
    const std::vector<std::string> handles = handles_of(1, {0, 1, 2}, member);
    const Status status = member.comm.reconfigure(uuid_of(0, {0, 1}), handles).status();
    EXPECT_EQ(status.code(), member.who == 2 ? StatusCode::kPeerLost : StatusCode::kInvalidArgument)
        << status.to_string();
    form(2, {0, 1, 2}, member);
  });
}

TEST_P(Reconfigure, a_uuid_may_be_any_bytes) {
  run(2, [this](Member member) {
    const std::string uuid(200000, '\xff');
    const std::vector<std::string> handles = handles_of(0, {0, 1}, member);
    const Result<Communicator> formed = member.comm.reconfigure(uuid, handles);
    ASSERT_TRUE(formed.ok()) << formed.status().to_string();
  });
}

TEST_P(Reconfigure, connections_of_strangers_do_not_disturb_it) {
  run(2, [this](Member member) {
    const std::vector<std::string> handles = handles_of(0, {0, 1}, member);
    const comm::Handle first = *comm::parse_handle(handles[0]);
    std::vector<transport::tcp::OutgoingCall> strangers;
    for (int i = 0; i < 20; ++i) {
      const std::string hello = i % 2 == 0 ? R"({"protocol":"none"})" : std::string(1000, '[');
      strangers.emplace_back(std::vector<std::string>{"127.0.0.1"}, first.port, hello);
      // Until it has said hello, or until rank 0 has sent it away.
      transport::tcp::OutgoingCall& stranger = strangers.back();
      while (!stranger.refused() && (stranger.fd() < 0 || stranger.events() != POLLIN))
        ASSERT_TRUE(stranger.advance().ok());
    }
    const Result<Communicator> formed = member.comm.reconfigure("among strangers", handles);
    ASSERT_TRUE(formed.ok()) << formed.status().to_string();
    (void)board_.gather(1, {0, 1}, member.who, "");
  });
}

TEST_P(Reconfigure, a_rank_that_has_closed_is_named_at_once) {
  run(4, [this](Member member) {
    const std::vector<std::string> handles = handles_of(0, {0, 1, 2, 3}, member);
    if (member.who == 2) return member.comm.close();
    const Status status = member.comm.reconfigure("closed", handles).status();
    EXPECT_EQ(status.code(), StatusCode::kPeerLost) << status.to_string();
    EXPECT_THAT(status.ranks(), ElementsAre(2)) << status.to_string();
    const std::vector<int> rest = {0, 1, 3};
    form(1, rest, member);
  });
}

TEST_P(Reconfigure, if_rank_0_has_closed_the_others_name_it) {
  run(3, [this](Member member) {
    const std::vector<std::string> handles = handles_of(0, {0, 1, 2}, member);
    if (member.who == 0) return member.comm.close();
    const Status status = member.comm.reconfigure("closed", handles).status();
    EXPECT_EQ(status.code(), StatusCode::kPeerLost) << status.to_string();
    EXPECT_THAT(status.ranks(), ElementsAre(0)) << status.to_string();
    form(1, {1, 2}, member);
  });
}

TEST_P(Reconfigure, a_rank_that_does_not_call_is_named_by_all) {
  run(3, [this](Member member) {
    const std::vector<std::string> handles = handles_of(0, {0, 1, 2}, member);
    if (member.who != 1) {
      const Status status =
          member.comm.reconfigure("late", handles, {.timeout = std::chrono::milliseconds(400)}).status();
      EXPECT_EQ(status.code(), StatusCode::kTimeout) << status.to_string();
      EXPECT_THAT(status.ranks(), ElementsAre(1)) << status.to_string();
    }
    form(1, {0, 1, 2}, member);
  });
}

TEST_P(Reconfigure, a_rank_that_can_wait_longer_learns_who_could_not) {
  run(3, [this](Member member) {
    const std::vector<std::string> handles = handles_of(0, {0, 1, 2}, member);
    if (member.who != 2) {
      const auto timeout = std::chrono::milliseconds(member.who == 0 ? 20000 : 300);
      const auto began = std::chrono::steady_clock::now();
      const Status status = member.comm.reconfigure("late", handles, {.timeout = timeout}).status();
      EXPECT_EQ(status.code(), StatusCode::kTimeout) << status.to_string();
      EXPECT_THAT(status.ranks(), ElementsAre(2)) << status.to_string();
      EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(10));
    }
    form(1, {0, 1, 2}, member);
  });
}

TEST_P(Reconfigure, handles_that_differ_are_a_mismatch_on_all_that_were_named) {
  run(3, [this](Member member) {
    std::vector<std::string> handles = handles_of(0, {0, 1, 2}, member);
    if (member.who == 1) std::swap(handles[1], handles[2]);
    const Status status = member.comm.reconfigure("different", handles).status();
    EXPECT_EQ(status.code(), StatusCode::kMismatch) << status.to_string();
    EXPECT_THAT(status.message(), HasSubstr("other handles"));
    form(1, {0, 1, 2}, member);
  });
}

TEST_P(Reconfigure, lists_with_different_first_ranks_are_a_mismatch) {
  run(2, [this](Member member) {
    std::vector<std::string> handles = handles_of(0, {0, 1}, member);
    if (member.who == 1) std::swap(handles[0], handles[1]);
    const Status status = member.comm.reconfigure("different", handles).status();
    EXPECT_EQ(status.code(), StatusCode::kMismatch) << status.to_string();
    form(1, {0, 1}, member);
  });
}

TEST_P(Reconfigure, a_rank_in_another_reconfiguration_is_a_mismatch) {
  run(3, [this](Member member) {
    const std::vector<std::string> handles = handles_of(0, {0, 1, 2}, member);
    const std::vector<std::string> pair = {handles[1], handles[0]};
    const Status status = member.who == 2
                              ? member.comm.reconfigure("three", handles, {.timeout = std::chrono::seconds(5)}).status()
                              : Status();
    if (member.who != 2) {
      Result<Communicator> formed = member.comm.reconfigure("two", pair);
      ASSERT_TRUE(formed.ok()) << formed.status().to_string();
    } else {
      // Rank 0 has formed the other group, or is about to.
      EXPECT_THAT(status.code(), ::testing::AnyOf(StatusCode::kMismatch, StatusCode::kPeerLost)) << status.to_string();
      EXPECT_THAT(status.ranks(), ElementsAre(0)) << status.to_string();
    }
  });
}

TEST_P(Reconfigure, options_that_differ_are_a_mismatch) {
  run(2, [this](Member member) {
    CommunicatorOptions other = options();
    if (member.who == 1) other.hints = "slot_bytes=32k";
    Result<Communicator> alone = Communicator::alone(other);
    ASSERT_TRUE(alone.ok()) << alone.status().to_string();
    member.comm = std::move(*alone);
    const Status status = member.comm.reconfigure("options", handles_of(0, {0, 1}, member)).status();
    EXPECT_EQ(status.code(), StatusCode::kMismatch) << status.to_string();
    EXPECT_THAT(status.message(), HasSubstr("slots of"));
  });
}

TEST_P(Reconfigure, wrong_arguments_are_refused_and_use_up_nothing) {
  run(1, [](Member member) {
    const std::string mine = *member.comm.handle();
    const auto refused = [&](const std::vector<std::string>& handles) {
      const Status status = member.comm.reconfigure("wrong", handles).status();
      EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status.to_string();
      return status.message();
    };
    EXPECT_THAT(refused({}), HasSubstr("no handles"));
    EXPECT_THAT(refused({mine, mine}), HasSubstr("twice"));
    EXPECT_THAT(refused({mine, "tcp://10.0.0.1"}), AllOf(HasSubstr("tcp://10.0.0.1"), HasSubstr("not a handle")));
    Result<Communicator> other = Communicator::alone();
    EXPECT_THAT(refused({*other->handle()}), HasSubstr("do not contain this rank's"));
    EXPECT_EQ(*member.comm.handle(), mine);
    Result<Communicator> formed = member.comm.reconfigure("wrong", std::vector{mine});
    ASSERT_TRUE(formed.ok()) << formed.status().to_string();
    EXPECT_NE(*formed->handle(), mine);
    member.comm.close();
    EXPECT_EQ(member.comm.handle().status().code(), StatusCode::kClosed);
    EXPECT_EQ(member.comm.reconfigure("later", std::vector{mine}).status().code(), StatusCode::kClosed);
  });
}

TEST_P(Reconfigure, closing_the_communicator_ends_the_call) {
  run(2, [this](Member member) {
    const std::vector<std::string> handles = handles_of(0, {0, 1}, member);
    if (member.who == 1) return (void)board_.gather(1, {0}, 1, "");  // stays alive and does not call
    std::thread closer([&] {
      const std::string taken = handles[0];
      while (*member.comm.handle() == taken) std::this_thread::yield();  // until the call has begun
      member.comm.close();
    });
    const Status status = member.comm.reconfigure("closing", handles).status();
    closer.join();
    EXPECT_EQ(status.code(), StatusCode::kClosed) << status.to_string();
    (void)board_.gather(1, {0}, 0, "");
  });
}

INSTANTIATE_TEST_SUITE_P(All, Reconfigure, ::testing::Values("inproc", "shm", "ucx"),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace accord
