// The texts in the store of an elastic group, whole and damaged.
#include "elastic/records.hpp"

#include <gtest/gtest.h>

namespace accord::elastic {
namespace {

TEST(MemberRecord, IsReadAsItWasWritten) {
  const MemberRecord record{.after = 7, .handle = "accord1/a", .life = "accord1/b"};
  const Result<MemberRecord> read = parse_member(to_text(record), "member/3");
  ASSERT_TRUE(read.ok());
  EXPECT_FALSE(read->has_left);
  EXPECT_EQ(read->after, 7);
  EXPECT_EQ(read->handle, "accord1/a");
  EXPECT_EQ(read->life, "accord1/b");
  EXPECT_TRUE(parse_member(to_text({.has_left = true, .handle = {}, .life = {}}), "member/3")->has_left);
}

TEST(MemberRecord, DamageIsReported) {
  for (const char* text : {"", "waiting", "waiting x a b", "waiting -1 a b", "waiting 1 a b c", "working 1 a b"}) {
    const Result<MemberRecord> read = parse_member(text, "member/3");
    EXPECT_EQ(read.status().code(), StatusCode::kCorrupt) << text;
    EXPECT_NE(read.status().message().find("member/3"), std::string::npos) << text;
  }
}

TEST(Round, IsReadAsItWasWritten) {
  const Round round{
      .number = 12, .uuid = "u-1", .members = {4, 2}, .handles = {"h4", "h2"}, .others = {7, 9}, .ids = 9};
  const Result<Round> read = parse_round(to_text(round), "latest");
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(read->number, 12);
  EXPECT_EQ(read->uuid, "u-1");
  EXPECT_EQ(read->members, round.members);
  EXPECT_EQ(read->handles, round.handles);
  EXPECT_EQ(read->others, round.others);
  EXPECT_EQ(read->ids, 9);
}

TEST(Round, DamageIsReported) {
  for (const char* text : {"", "1", "1 u 2", "1 u 2 1", "1 u 2 1 4", "0 u 2 1 4 h", "1 u 2 9223372036854775807 4 h",
                           "1 u 2 0", "1 u 2 2 4 h 5", "1 u 2 1 4 h x", "1 u 2 1 -4 h"}) {
    const Result<Round> read = parse_round(text, "latest");
    EXPECT_EQ(read.status().code(), StatusCode::kCorrupt) << text;
    EXPECT_NE(read.status().message().find("latest"), std::string::npos) << text;
  }
}

}  // namespace
}  // namespace accord::elastic
