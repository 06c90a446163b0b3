// Elastic groups of threads that share a store in memory.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <future>
#include <thread>
#include <vector>

#include "accord/elastic.hpp"
#include "base/clock.hpp"

namespace accord {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr auto kLong = std::chrono::seconds(30);
constexpr auto kShort = std::chrono::seconds(1);

ElasticOptions options_for(int min_ranks, int max_ranks) {
  return {
      .min_ranks = min_ranks, .max_ranks = max_ranks, .last_call = kLong, .form_timeout = kLong, .communicator = {}};
}

/// The sum of 1 over all ranks, which shows that the group works.
int count_ranks(Communicator& communicator) {
  std::int32_t one = 1, sum = 0;
  const Status done =
      communicator.all_reduce(ConstBuffer(&one, 1, DType::kInt32), Buffer{&sum, 1, DType::kInt32}, ReduceOp::kSum);
  return done.ok() ? sum : -1;
}

class ElasticGroups : public ::testing::Test {
 protected:
  ElasticGroup open(const ElasticOptions& options) {
    Result<ElasticGroup> group = ElasticGroup::open(store_, options);
    EXPECT_TRUE(group.ok()) << group.status().to_string();
    return *std::move(group);
  }

  static std::future<Result<std::optional<Communicator>>> form(ElasticGroup& group) {
    return std::async(std::launch::async, [&group] { return group.form(); });
  }

  /// All `groups` form the next group, whose size is `size`; returns the communicators.
  static std::vector<Communicator> form_all(const std::vector<ElasticGroup*>& groups, int size) {
    std::vector<std::future<Result<std::optional<Communicator>>>> calls;
    for (ElasticGroup* group : groups) calls.push_back(form(*group));
    std::vector<Communicator> made;
    for (auto& call : calls) {
      Result<std::optional<Communicator>> communicator = call.get();
      EXPECT_TRUE(communicator.ok()) << communicator.status().to_string();
      EXPECT_TRUE(communicator.ok() && communicator->has_value());
      if (!communicator.ok() || !*communicator) return {};
      EXPECT_EQ((*communicator)->size(), size);
      made.push_back(**communicator);
    }
    return made;
  }

  /// Calls `body` for each of `count` participants, each in a thread of its own.
  template <typename Body>
  static void together(std::size_t count, Body body) {
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < count; ++i) threads.emplace_back([&body, i] { body(i); });
    for (std::thread& thread : threads) thread.join();
  }

  static void expect_works(std::vector<Communicator>& communicators) {
    together(communicators.size(),
             [&](std::size_t i) { EXPECT_EQ(count_ranks(communicators[i]), static_cast<int>(communicators.size())); });
  }

  const std::shared_ptr<Store> store_ = make_memory_store();
};

TEST_F(ElasticGroups, TheFirstGroupHasAllRanksInTheOrderInWhichTheyCame) {
  ElasticGroup a = open(options_for(1, 3)), b = open(options_for(1, 3)), c = open(options_for(1, 3));
  std::vector<Communicator> made = form_all({&a, &b, &c}, 3);
  ASSERT_EQ(made.size(), 3U);
  for (Rank rank = 0; rank < 3; ++rank) EXPECT_EQ(made[static_cast<std::size_t>(rank)].rank(), rank);
  expect_works(made);
  EXPECT_EQ(a.round(), 1);
}

TEST_F(ElasticGroups, TheLastCallEndsTheWaitForFurtherRanks) {
  ElasticOptions options = options_for(2, 9);
  options.last_call = kShort;
  ElasticGroup a = open(options), b = open(options);
  std::vector<Communicator> made = form_all({&a, &b}, 2);
  expect_works(made);
}

TEST_F(ElasticGroups, GoesOnWithoutARankThatLeftAndTakesInANewOne) {
  ElasticGroup a = open(options_for(1, 3)), b = open(options_for(1, 3));
  auto c = std::make_unique<ElasticGroup>(open(options_for(1, 3)));
  form_all({&a, &b, c.get()}, 3);
  c.reset();
  std::vector<Communicator> two = form_all({&a, &b}, 2);
  expect_works(two);
  together(2, [&](std::size_t i) {
    const Result<bool> wait = (i == 0 ? a : b).others_wait();
    EXPECT_TRUE(wait.ok() && !*wait);
  });

  ElasticGroup d = open(options_for(1, 3));
  auto joined = form(d);
  bool they_wait = false;
  for (const Deadline deadline = Deadline::in(kLong); !they_wait && !deadline.passed();) {
    together(2, [&](std::size_t i) {
      const Result<bool> wait = (i == 0 ? a : b).others_wait();
      EXPECT_TRUE(wait.ok());
      if (i == 0) they_wait = wait.ok() && *wait;
    });
  }
  EXPECT_TRUE(they_wait);
  std::vector<Communicator> three = form_all({&a, &b}, 3);
  const Result<std::optional<Communicator>> last = joined.get();
  ASSERT_TRUE(last.ok() && last->has_value());
  EXPECT_EQ((*last)->rank(), 2);
  three.push_back(**last);
  expect_works(three);
}

TEST_F(ElasticGroups, OneRankThatCallsFormBringsTheOthers) {
  ElasticGroup a = open(options_for(2, 2)), b = open(options_for(2, 2));
  std::vector<Communicator> made = form_all({&a, &b}, 2);
  auto first = form(a);
  EXPECT_EQ(count_ranks(made[1]), -1);  // ends with an error, though nobody has died
  std::vector<Communicator> again = form_all({&b}, 2);
  EXPECT_TRUE(first.get().ok());
}

TEST_F(ElasticGroups, ASpareWaitsUntilThereIsAPlace) {
  ElasticOptions options = options_for(1, 2);
  options.form_timeout = kShort;  // which does not end the wait of a spare
  auto a = std::make_unique<ElasticGroup>(open(options));
  ElasticGroup b = open(options), c = open(options);
  form_all({a.get(), &b}, 2);
  auto spare = form(c);
  EXPECT_EQ(spare.wait_for(3 * kShort), std::future_status::timeout);
  a.reset();
  std::vector<Communicator> made = form_all({&b}, 2);
  const Result<std::optional<Communicator>> communicator = spare.get();
  ASSERT_TRUE(communicator.ok() && communicator->has_value());
  EXPECT_EQ((*communicator)->rank(), 1);
}

TEST_F(ElasticGroups, TooFewRanksAreATimeoutAndMayTryAgain) {
  ElasticOptions options = options_for(2, 2);
  options.form_timeout = kShort;
  ElasticGroup a = open(options);
  const Result<std::optional<Communicator>> alone = a.form();
  EXPECT_EQ(alone.status().code(), StatusCode::kTimeout);
  EXPECT_THAT(alone.status().message(), HasSubstr("1 of at least 2 ranks came within 1 s"));
  ElasticGroup b = open(options_for(2, 2)), c = open(options_for(2, 2));
  form_all({&b, &c}, 2);
}

TEST_F(ElasticGroups, AllRanksWaitForTheOthersEquallyLong) {
  ElasticOptions options = options_for(4, 4);
  options.form_timeout = kShort;
  std::vector<ElasticGroup> groups;
  for (int i = 0; i < 3; ++i) groups.push_back(open(options));
  const auto begin = std::chrono::steady_clock::now();
  together(3, [&](std::size_t i) { EXPECT_EQ(groups[i].form().status().code(), StatusCode::kTimeout); });
  // One after the other they would take three times as long.
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 2 * kShort + kShort / 2);
}

TEST_F(ElasticGroups, AProcessThatCannotBeReachedIsNamed) {
  ElasticOptions options = options_for(2, 2);
  options.form_timeout = kShort;
  std::string record;
  {
    ElasticGroup lost = open(options);
    auto call = form(lost);
    record = *store_->get("accord/elastic/elastic/member/1", kLong);
    EXPECT_EQ(call.get().status().code(), StatusCode::kTimeout);
  }
  ASSERT_TRUE(store_->set("accord/elastic/elastic/member/1", record).ok());  // as if a network had hidden its end
  ElasticGroup alone = open(options);
  EXPECT_THAT(alone.form().status().message(),
              AllOf(HasSubstr(fmt::format("process {} at ", ::getpid())), HasSubstr("cannot be reached")));
}

TEST_F(ElasticGroups, ARankThatDoesNotComeIsLeftOutAndMayComeLater) {
  ElasticOptions options = options_for(1, 3);
  options.form_timeout = kShort;
  ElasticGroup a = open(options), b = open(options), c = open(options);
  form_all({&a, &b, &c}, 3);
  form_all({&a, &b}, 2);
  EXPECT_TRUE(a.round() == 2 && b.round() == 2);
  auto late = form(c);
  bool they_wait = false;
  for (const Deadline deadline = Deadline::in(kLong); !they_wait && !deadline.passed();) {
    together(2, [&](std::size_t i) {
      const Result<bool> wait = (i == 0 ? a : b).others_wait();
      if (i == 0) they_wait = wait.ok() && *wait;
    });
  }
  form_all({&a, &b}, 3);
  EXPECT_TRUE(late.get().ok());
}

TEST_F(ElasticGroups, AFinishedJobTakesInNobody) {
  ElasticGroup a = open(options_for(1, 1)), spare = open(options_for(1, 1));
  form_all({&a}, 1);
  auto waiting = form(spare);
  EXPECT_TRUE(a.finish().ok());
  const Result<std::optional<Communicator>> nothing = waiting.get();
  EXPECT_TRUE(nothing.ok() && !nothing->has_value());
  ElasticGroup late = open(options_for(1, 1));
  const Result<std::optional<Communicator>> nothing_either = late.form();
  EXPECT_TRUE(nothing_either.ok() && !nothing_either->has_value());
}

TEST_F(ElasticGroups, CloseEndsForm) {
  ElasticGroup a = open(options_for(2, 2));
  auto waiting = form(a);
  a.close();
  EXPECT_EQ(waiting.get().status().code(), StatusCode::kAborted);
}

TEST_F(ElasticGroups, DifferentOptionsAreAMismatchOnAllRanks) {
  ElasticOptions other = options_for(2, 2);
  other.communicator.hints = "slot_bytes=128k";
  ElasticGroup a = open(options_for(2, 2)), b = open(other);
  auto first = form(a), second = form(b);
  EXPECT_EQ(first.get().status().code(), StatusCode::kMismatch);
  EXPECT_EQ(second.get().status().code(), StatusCode::kMismatch);
}

TEST_F(ElasticGroups, TheMostAdvancedRankIsTheLowestWithMostSteps) {
  ElasticGroup groups[] = {open(options_for(4, 4)), open(options_for(4, 4)), open(options_for(4, 4)),
                           open(options_for(4, 4))};
  form_all({&groups[0], &groups[1], &groups[2], &groups[3]}, 4);
  constexpr std::int64_t kSteps[] = {-1, 6, 7, 7};
  together(4, [&](std::size_t i) {
    const Result<Rank> source = groups[i].most_advanced(kSteps[i]);
    EXPECT_TRUE(source.ok() && *source == 2);
  });
}

TEST_F(ElasticGroups, CallsBeforeTheFirstGroupAreRefused) {
  ElasticGroup a = open(options_for(1, 1));
  EXPECT_EQ(a.others_wait().status().code(), StatusCode::kWrongState);
  EXPECT_EQ(a.most_advanced(1).status().code(), StatusCode::kWrongState);
}

TEST_F(ElasticGroups, ImpossibleOptionsAreRefused) {
  EXPECT_EQ(ElasticGroup::open(nullptr).status().code(), StatusCode::kInvalidArgument);
  for (const auto& [low, high] : {std::pair(0, 1), std::pair(3, 2), std::pair(-1, -1)}) {
    const Status refused = ElasticGroup::open(store_, options_for(low, high)).status();
    EXPECT_EQ(refused.code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(refused.message(), HasSubstr("expected 1 <= minimum <= maximum"));
  }
}

TEST_F(ElasticGroups, DamageInTheStoreIsReported) {
  for (const char* key : {"latest", "round/1"}) {
    const std::string whole = std::string("accord/elastic/elastic/") + key;
    ASSERT_TRUE(store_->set(whole, "rubbish").ok());
    ElasticGroup a = open(options_for(1, 1));
    const Status damaged = a.form().status();
    EXPECT_EQ(damaged.code(), StatusCode::kCorrupt) << key;
    EXPECT_THAT(damaged.message(), HasSubstr("rubbish")) << key;
    ASSERT_TRUE(store_->erase(whole).ok());
  }
}

TEST_F(ElasticGroups, CloseLetsTheOthersGoOnAtOnce) {
  ElasticGroup a = open(options_for(1, 2)), b = open(options_for(1, 2));
  form_all({&a, &b}, 2);
  a.close();
  const auto begin = Clock::now();
  form_all({&b}, 1);
  EXPECT_LT(Clock::now() - begin, kLong / 2);  // else it would wait for `a`
}

TEST_F(ElasticGroups, AnInfiniteTimeoutIsNone) {
  ElasticOptions options = options_for(2, 2);
  options.form_timeout = Duration::max();
  ElasticGroup a = open(options), b = open(options);
  form_all({&a, &b}, 2);
}

TEST_F(ElasticGroups, ANameIsForOneJob) {
  ElasticGroup a = open(options_for(1, 1));
  form_all({&a}, 1);
  EXPECT_TRUE(a.finish().ok());
  const Result<std::optional<Communicator>> nothing = a.form();
  EXPECT_TRUE(nothing.ok() && !nothing->has_value());
}

/// A store that is gone from a moment on.
class FailingStore final : public Store {
 public:
  explicit FailingStore(std::shared_ptr<Store> store) : store_(std::move(store)) {}
  void fail() { has_failed_ = true; }
  Status set(std::string_view key, std::string_view value) override {
    return has_failed_ ? gone() : store_->set(key, value);
  }
  Result<std::string> get(std::string_view key, Duration timeout) override {
    if (has_failed_) return gone();
    return store_->get(key, timeout);
  }
  Result<std::int64_t> add(std::string_view key, std::int64_t delta) override {
    if (has_failed_) return gone();
    return store_->add(key, delta);
  }
  Status erase(std::string_view key) override { return has_failed_ ? gone() : store_->erase(key); }
  std::string describe() const override { return "failing"; }

 private:
  static Status gone() { return Status(StatusCode::kPeerLost, "its host is gone"); }
  const std::shared_ptr<Store> store_;
  std::atomic<bool> has_failed_ = false;
};

TEST_F(ElasticGroups, AStoreThatIsGoneIsNoLostRank) {
  const auto store = std::make_shared<FailingStore>(store_);
  Result<ElasticGroup> a = ElasticGroup::open(store, options_for(1, 1));
  ASSERT_TRUE(a.ok());
  form_all({&*a}, 1);
  store->fail();
  const Status failure = a->form().status();
  EXPECT_EQ(failure.code(), StatusCode::kIo);
  EXPECT_THAT(failure.message(), HasSubstr("its host is gone"));
}

/// A store in which the first round is announced late, as by a process that was stopped before.
class LateStore final : public Store {
 public:
  explicit LateStore(std::shared_ptr<Store> store) : store_(std::move(store)) {}
  void hold(std::string key) { held_ = std::move(key); }
  void release() { released_.set_value(); }
  std::future<void> reached() { return reached_.get_future(); }
  Status set(std::string_view key, std::string_view value) override {
    if (key == held_) {
      held_.clear();
      reached_.set_value();
      released_.get_future().wait();
    }
    return store_->set(key, value);
  }
  Result<std::string> get(std::string_view key, Duration timeout) override { return store_->get(key, timeout); }
  Result<std::int64_t> add(std::string_view key, std::int64_t delta) override { return store_->add(key, delta); }
  Status erase(std::string_view key) override { return store_->erase(key); }
  std::string describe() const override { return "late"; }

 private:
  const std::shared_ptr<Store> store_;
  std::string held_;
  std::promise<void> reached_, released_;
};

TEST_F(ElasticGroups, AProposalThatComesTooLateIsVoid) {
  const auto late = std::make_shared<LateStore>(store_);
  late->hold("accord/elastic/elastic/proposal/1/0");
  ElasticOptions options = options_for(1, 2);
  options.form_timeout = kShort;
  options.last_call = Duration::zero();
  Result<ElasticGroup> a = ElasticGroup::open(late, options);
  ASSERT_TRUE(a.ok());
  auto reached = late->reached();
  auto first = form(*a);
  reached.wait();
  ElasticGroup b = open(options);
  std::vector<Communicator> alone = form_all({&b}, 1);  // it has waited for `a`, which leads, for long enough
  late->release();
  // `a` is not in the round that was decided: it waits, and b takes it in.
  bool they_wait = false;
  for (const Deadline deadline = Deadline::in(kLong); !they_wait && !deadline.passed();) {
    const Result<bool> wait = b.others_wait();
    they_wait = wait.ok() && *wait;
  }
  std::vector<Communicator> both = form_all({&b}, 2);
  const Result<std::optional<Communicator>> joined = first.get();
  ASSERT_TRUE(joined.ok() && joined->has_value());
  both.push_back(**joined);
  expect_works(both);
}

}  // namespace
}  // namespace accord
