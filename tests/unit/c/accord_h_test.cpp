#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "accord/accord.h"
#include "accord/info.hpp"

namespace {

using testing::HasSubstr;

TEST(CInterface, reports_the_version_and_names_of_statuses) {
  EXPECT_EQ(accord_version(), std::string(accord::version()));
  EXPECT_STREQ(accord_status_name(ACCORD_OK), "ok");
  EXPECT_STREQ(accord_status_name(ACCORD_PEER_LOST), "peer_lost");
  EXPECT_STREQ(accord_status_name(ACCORD_INTERNAL), "internal");
  EXPECT_STREQ(accord_status_name(ACCORD_INTERNAL + 1), "unknown");
  EXPECT_STREQ(accord_status_name(-1), "unknown");
}

TEST(CInterface, the_last_error_belongs_to_the_thread_that_failed) {
  ASSERT_EQ(accord_check_feature("shn"), ACCORD_INVALID_ARGUMENT);
  const std::string here = accord_last_error();
  EXPECT_THAT(here, HasSubstr("did you mean \"shm\"?"));
  std::string before, after;
  std::thread([&] {
    before = accord_last_error();
    EXPECT_EQ(accord_check_feature(nullptr), ACCORD_INVALID_ARGUMENT);
    after = accord_last_error();
  }).join();
  EXPECT_EQ(before, "");
  EXPECT_THAT(after, HasSubstr("null"));
  EXPECT_EQ(accord_last_error(), here);
}

TEST(CInterface, a_successful_call_keeps_the_last_error) {
  ASSERT_EQ(accord_check_feature("cudda"), ACCORD_INVALID_ARGUMENT);
  const std::string why = accord_last_error();
  EXPECT_THAT(why, HasSubstr("cudda"));
  EXPECT_EQ(accord_check_feature("inproc"), ACCORD_OK);
  EXPECT_EQ(accord_last_error(), why);
}

TEST(CInterface, info_needs_exactly_the_bytes_that_it_reports) {
  size_t needed = 0;
  ASSERT_EQ(accord_info_json(nullptr, 0, &needed), ACCORD_OK);
  ASSERT_GT(needed, 100U);
  std::vector<char> buffer(needed, 'x');
  EXPECT_EQ(accord_info_json(buffer.data(), needed - 1, nullptr), ACCORD_RESOURCE_EXHAUSTED);
  EXPECT_EQ(buffer.front(), 'x');
  EXPECT_THAT(accord_last_error(), HasSubstr(std::to_string(needed)));
  EXPECT_EQ(accord_info_json(nullptr, 1, nullptr), ACCORD_INVALID_ARGUMENT);
  ASSERT_EQ(accord_info_json(buffer.data(), needed, nullptr), ACCORD_OK);
  const auto json = nlohmann::json::parse(buffer.data());
  EXPECT_EQ(json.at("version"), accord_version());
  EXPECT_EQ(std::string(buffer.data()).size() + 1, needed);
}

TEST(CInterface, every_feature_that_info_lists_can_be_queried) {
  const accord::Info info = accord::info();
  for (const auto* parts : {&info.transports, &info.parts}) {
    for (const accord::PartInfo& part : *parts) {
      EXPECT_EQ(accord_check_feature(part.name.c_str()), part.available ? ACCORD_OK : ACCORD_UNSUPPORTED) << part.name;
    }
  }
}

}  // namespace
