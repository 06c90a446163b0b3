// Ranks that exchange texts through a store: timeouts, second attempts, disagreement. Ranks are threads, or their keys
// are set by hand.
#include "comm/membership/exchange.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <mutex>
#include <thread>

namespace accord::comm {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr auto kLong = std::chrono::seconds(30);
constexpr auto kShort = std::chrono::milliseconds(50);

JoinRequest request(Rank rank, int size, Duration timeout) {
  return {.rank = rank, .size = size, .options = {.name = "tp"}, .deadline = Deadline::in(timeout)};
}

Status accept_all(Rank, const std::string&) { return {}; }

/// Runs one exchange as `rank`, which sends its number.
Status attempt(const std::shared_ptr<Store>& store, Rank rank, int size, Duration timeout,
               const OnText& on_text = accept_all) {
  return store_exchange(store, request(rank, size, timeout))("hello", std::to_string(rank), on_text);
}

/// Runs one exchange as all ranks at once.
std::vector<Status> attempt_by_all(const std::shared_ptr<Store>& store, int size) {
  std::vector<Status> statuses(size);
  std::vector<std::thread> ranks;
  for (Rank rank = 0; rank < size; ++rank)
    ranks.emplace_back([&, rank] { statuses[rank] = attempt(store, rank, size, kLong); });
  for (std::thread& rank : ranks) rank.join();
  return statuses;
}

void expect_all_ranks_connect(const std::shared_ptr<Store>& store, int size) {
  for (int times = 0; times < 3; ++times)
    for (const Status& status : attempt_by_all(store, size)) EXPECT_TRUE(status.ok()) << status.to_string();
}

TEST(StoreExchange, every_rank_gets_the_texts_of_all_in_rank_order) {
  const std::shared_ptr<Store> store = make_memory_store();
  std::vector<std::vector<std::string>> seen(3);
  std::vector<std::thread> ranks;
  for (Rank rank = 0; rank < 3; ++rank)
    ranks.emplace_back([&, rank] {
      const Exchange exchange = store_exchange(store, request(rank, 3, kLong));
      for (const char* step : {"hello", "address"}) {
        const Status status = exchange(step, step + std::to_string(rank), [&](Rank, const std::string& text) -> Status {
          seen[rank].push_back(text);
          return {};
        });
        EXPECT_TRUE(status.ok()) << status.to_string();
      }
    });
  for (std::thread& rank : ranks) rank.join();
  for (const auto& texts : seen)
    EXPECT_EQ(texts, (std::vector<std::string>{"hello0", "hello1", "hello2", "address0", "address1", "address2"}));
}

TEST(StoreExchange, a_duplicate_rank_is_rejected_during_creation_and_explained_by_a_later_timeout) {
  const std::shared_ptr<Store> store = make_memory_store();
  ASSERT_TRUE(store->set("accord/tp/open", "1").ok());
  EXPECT_EQ(attempt(store, 1, 2, kShort).code(), StatusCode::kTimeout) << "rank 0 publishes nothing";
  const Status later = attempt(store, 1, 2, kShort);
  EXPECT_EQ(later.code(), StatusCode::kTimeout);
  EXPECT_THAT(later.message(), HasSubstr("a process joined as rank 1 before"));
  ASSERT_TRUE(store->erase("accord/tp/joined/1").ok());  // as if the first process were still joining
  const Status same_time = attempt(store, 1, 2, kLong);
  EXPECT_EQ(same_time.code(), StatusCode::kWrongState) << same_time.to_string();
  EXPECT_THAT(same_time.message(), HasSubstr("rank 1 of 2 has already joined"));
  EXPECT_EQ(*store->get("accord/tp/1/hello/1", kShort), "1") << "the entry of the first process is unchanged";
}

TEST(StoreExchange, a_rank_with_another_size_gets_an_error_with_the_size_of_the_group) {
  const std::shared_ptr<Store> store = make_memory_store();
  EXPECT_THAT(attempt(store, 2, 3, kShort).message(), Not(HasSubstr("before")));
  expect_all_ranks_connect(store, 2);
  EXPECT_THAT(attempt(store, 2, 3, kShort).message(), HasSubstr("rank 0 opened the group earlier, for other ranks"));
}

TEST(StoreExchange, ranks_connect_after_incomplete_attempts) {
  for (const std::vector<Rank>& arrived : {std::vector{0}, {1}, {0, 0}, {2, 1}, {1, 0, 2, 0}}) {
    const std::shared_ptr<Store> store = make_memory_store();
    for (const Rank rank : arrived)
      EXPECT_EQ(attempt(store, rank, 3, kShort).code(), StatusCode::kTimeout) << "rank " << rank << " alone";
    expect_all_ranks_connect(store, 3);
  }
}

TEST(StoreExchange, missing_ranks_are_named) {
  const std::shared_ptr<Store> store = make_memory_store();
  EXPECT_EQ(attempt(store, 0, 3, kShort).ranks(), (std::vector<Rank>{1, 2}));
  const Status without_rank_0 = attempt(store, 1, 3, kShort);
  EXPECT_EQ(without_rank_0.ranks(), std::vector<Rank>{0});
  EXPECT_THAT(without_rank_0.message(), HasSubstr("creating group \"tp\" in memory: rank 0 of 3"));
}

TEST(StoreExchange, all_ranks_report_a_disagreeing_rank_immediately_and_it_may_retry) {
  const std::shared_ptr<Store> store = make_memory_store();
  const auto not_from_1 = [](Rank from, const std::string&) {
    return from == 1 ? Status(StatusCode::kMismatch, "rank 1 disagrees") : Status();
  };
  std::thread disagreeing([&] {
    // The sizes differ: rank 1 waits for a third rank, which never arrives.
    const Status status = attempt(store, 1, 3, kLong, [](Rank from, const std::string&) {
      return from == 0 ? Status(StatusCode::kMismatch, "rank 0 disagrees") : Status();
    });
    EXPECT_EQ(status.code(), StatusCode::kMismatch) << status.to_string();
  });
  EXPECT_EQ(attempt(store, 0, 4, kLong, not_from_1).code(), StatusCode::kMismatch);
  disagreeing.join();
  EXPECT_EQ(attempt(store, 2, 4, kLong, not_from_1).code(), StatusCode::kMismatch) << "late ranks too";
  expect_all_ranks_connect(store, 3);
}

/// Records how long each get() is allowed to take.
class NotingStore final : public Store {
 public:
  Status set(std::string_view key, std::string_view value) override { return below_->set(key, value); }
  Result<std::string> get(std::string_view key, Duration timeout) override {
    {
      const std::lock_guard lock(mutex_);
      timeouts_.push_back(timeout);
    }
    return below_->get(key, timeout);
  }
  Result<std::int64_t> add(std::string_view key, std::int64_t delta) override { return below_->add(key, delta); }
  Status erase(std::string_view key) override { return below_->erase(key); }
  std::string describe() const override { return below_->describe(); }

  std::vector<Duration> timeouts() const {
    const std::lock_guard lock(mutex_);
    return timeouts_;
  }

 private:
  std::shared_ptr<Store> below_ = make_memory_store();
  mutable std::mutex mutex_;
  std::vector<Duration> timeouts_;
};

TEST(StoreExchange, the_second_attempt_may_start_before_rank_0) {
  const auto store = std::make_shared<NotingStore>();
  const OnText refuse = [](Rank, const std::string&) { return Status(StatusCode::kMismatch, "no"); };
  EXPECT_EQ(attempt(store, 0, 2, kLong, refuse).code(), StatusCode::kMismatch);
  EXPECT_EQ(attempt(store, 1, 2, kLong, refuse).code(), StatusCode::kMismatch);
  Status early;
  const std::size_t expected_polls = store->timeouts().size() + 3;
  std::thread rank_1([&] { early = attempt(store, 1, 2, kLong); });
  while (store->timeouts().size() < expected_polls)
    std::this_thread::yield();  // rank 1 stays out of the failed attempt
  EXPECT_TRUE(attempt(store, 0, 2, kLong).ok());
  rank_1.join();
  EXPECT_TRUE(early.ok()) << early.to_string();
}

TEST(StoreExchange, all_steps_share_one_deadline) {
  const auto store = std::make_shared<NotingStore>();
  for (const char* step : {"hello", "address"})
    ASSERT_TRUE(store->set(std::string("accord/tp/1/") + step + "/1", "1").ok());
  const Exchange exchange = store_exchange(store, request(0, 2, kLong));
  for (const char* step : {"hello", "address"}) ASSERT_TRUE(exchange(step, "0", accept_all).ok());
  const std::vector<Duration> timeouts = store->timeouts();
  ASSERT_EQ(timeouts.size(), 4u);
  for (std::size_t i = 1; i < timeouts.size(); ++i) EXPECT_LT(timeouts[i], timeouts[i - 1]);
}

}  // namespace
}  // namespace accord::comm
