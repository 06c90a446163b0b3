// How a joining rank handles its own errors and arbitrary texts of other ranks.
#include "comm/membership/bootstrap.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace accord::comm {
namespace {

using ::testing::HasSubstr;

/// Joins as rank 0 of 2. Rank 1 publishes the same as rank 0, except for `address`.
Status join_with(const std::string& address) {
  return join({.rank = 0, .size = 2, .options = {.name = "tp"}, .deadline = Deadline::in(std::chrono::seconds(20))},
              [&](std::string_view step, const std::string& mine, const OnText& on_text) {
                const Status first = on_text(0, mine);
                return first.ok() ? on_text(1, step == "hello" ? mine : address) : first;
              })
      .status();
}

TEST(Join, an_invalid_descriptor_is_an_error_that_names_the_rank) {
  for (const char* address : {"", "x", "[]", "{}", R"({"error": 5})", R"({"descriptor": {"a": 1}})", "\xff\xfe"}) {
    const Status status = join_with(address);
    EXPECT_EQ(status.code(), StatusCode::kMismatch) << address;
    EXPECT_THAT(status.message(), HasSubstr("rank 1 speaks another protocol")) << address;
  }
  EXPECT_THAT(join_with(R"({"error": "no memory"})").message(), HasSubstr("rank 1 does not take part: no memory"));
}

TEST(Join, invalid_options_are_rejected_before_any_rank_is_contacted) {
  const Exchange never = [](std::string_view, const std::string&, const OnText&) -> Status {
    ADD_FAILURE() << "the store was used";
    return {};
  };
  const auto refusal = [&](const GroupOptions& options) {
    return join({.rank = 0, .size = 2, .options = options}, never).status();
  };
  EXPECT_THAT(refusal({.name = "tp", .transport = "inprok"}).message(), HasSubstr("did you mean \"inproc\"?"));
  EXPECT_THAT(refusal({.name = "tp", .select = "all_reduze:0-inf=packet"}).message(), HasSubstr("\"all_reduce\""));
  const Status no_text = refusal({.name = "tp", .select = "\xff\xfe"});
  EXPECT_EQ(no_text.code(), StatusCode::kInvalidArgument) << no_text.to_string();
  for (const char* nameless : {"@", "@;all_reduce:0-inf=ring"})
    EXPECT_THAT(resolve({.select = nameless}).status().message(), HasSubstr("no file is named after \"@\""))
        << nameless;
  const Status too_many = join({.rank = 0, .size = 2147483647, .options = {.name = "tp"}}, never).status();
  EXPECT_THAT(too_many.message(), HasSubstr("2147483647 ranks are more than the 1048576 that a group may have"));
}

}  // namespace
}  // namespace accord::comm
