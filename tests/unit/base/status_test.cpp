#include "accord/status.hpp"

#include <gmock/gmock.h>

#include <set>

namespace accord {
namespace {

TEST(Status, is_ok_without_a_message_by_default) {
  const Status status;
  EXPECT_TRUE(status.ok());
  EXPECT_EQ(status.code(), StatusCode::kOk);
  EXPECT_EQ(status.message(), "");
  EXPECT_TRUE(status.ranks().empty());
  EXPECT_EQ(status.to_string(), "ok");
}

TEST(Status, with_the_code_ok_is_ok_whatever_its_message) { EXPECT_TRUE(Status(StatusCode::kOk, "fine").ok()); }

TEST(Status, keeps_code_message_and_ranks) {
  const Status status(StatusCode::kPeerLost, "rank 2 died", {2});
  const Status copy = status;
  EXPECT_FALSE(copy.ok());
  EXPECT_EQ(copy.code(), StatusCode::kPeerLost);
  EXPECT_EQ(copy.to_string(), "peer_lost: rank 2 died");
  EXPECT_THAT(copy.ranks(), testing::ElementsAre(2));
}

TEST(Status, with_context_puts_it_before_the_message_and_keeps_the_rest) {
  const Status status = Status(StatusCode::kTimeout, "no answer", {1, 3}).with_context("barrier");
  EXPECT_EQ(status.to_string(), "timeout: barrier: no answer");
  EXPECT_THAT(status.ranks(), testing::ElementsAre(1, 3));
  EXPECT_TRUE(Status().with_context("barrier").ok());
}

TEST(Status, every_code_has_its_own_name) {
  std::set<std::string_view> names;
  for (int code = 0; code <= static_cast<int>(StatusCode::kInternal); ++code) {
    names.insert(to_string(static_cast<StatusCode>(code)));
  }
  EXPECT_EQ(names.size(), static_cast<std::size_t>(StatusCode::kInternal) + 1);
  EXPECT_THAT(names, testing::Not(testing::Contains("unknown")));
}

TEST(Result, holds_a_value_or_a_failure) {
  const Result<int> value = 7;
  ASSERT_TRUE(value.ok());
  EXPECT_EQ(*value, 7);
  EXPECT_TRUE(value.status().ok());
  const Result<int> failure = Status(StatusCode::kNotFound, "nothing there");
  EXPECT_FALSE(failure.ok());
  EXPECT_EQ(failure.status().code(), StatusCode::kNotFound);
}

TEST(Result, from_an_ok_status_is_an_internal_error) {
  const Result<int> result = Status();
  EXPECT_EQ(result.status().code(), StatusCode::kInternal);
}

Result<std::unique_ptr<int>> doubled(Result<std::unique_ptr<int>> input) {
  ACCORD_ASSIGN_OR_RETURN(std::unique_ptr<int> value, std::move(input));
  *value *= 2;
  return value;
}

TEST(Result, moves_through_the_macro_and_a_failure_returns_immediately) {
  EXPECT_EQ(**doubled(std::make_unique<int>(21)), 42);
  EXPECT_EQ(doubled(Status(StatusCode::kClosed, "gone")).status().to_string(), "closed: gone");
}

}  // namespace
}  // namespace accord
