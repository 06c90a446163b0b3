#include "accord/chat_format.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ctime>
#include <vector>

namespace accord {
namespace {

using testing::HasSubstr;

constexpr std::string_view kTable = R"({"format": "accord-chat-format", "format_version": 1,
    "start": {"user": "<s>", "system": ["<s>[", {"date": "%Y"}, "] "]},
    "between": {"user": {"assistant": " -> "}, "assistant": {"user": " | "}, "system": {"user": "; "}},
    "end": {"assistant": "</s>", "user": ""}, "generation": {"user": " -> "}, "trimmed": ["user"]})";

TEST(ChatFormat, a_conversation_is_written_by_the_table) {
  const auto format = ChatFormat::parse(kTable);
  ASSERT_TRUE(format.ok()) << format.status().to_string();
  const std::vector<ChatMessage> messages = {{"user", " \xe2\x80\x83 Hi\n"}, {"assistant", " Yes "}, {"user", "  "}};
  EXPECT_EQ(*format->render(messages), "<s>Hi ->  Yes  |  -> ");
  EXPECT_EQ(*format->render(std::span(messages).first(2), AddGenerationPrompt::kNo), "<s>Hi ->  Yes </s>");
}

TEST(ChatFormat, a_date_is_todays) {
  const auto format = ChatFormat::parse(kTable);
  const std::vector<ChatMessage> messages = {{"system", "s"}, {"user", "u"}};
  const auto year = [] {
    const std::time_t now = std::time(nullptr);
    return std::to_string(1900 + std::localtime(&now)->tm_year);
  };
  const std::string before = year();
  const std::string text = *format->render(messages, AddGenerationPrompt::kNo);
  EXPECT_TRUE(text == "<s>[" + before + "] s; u" || text == "<s>[" + year() + "] s; u") << text;
}

TEST(ChatFormat, a_conversation_that_the_table_does_not_support_is_rejected) {
  const auto format = ChatFormat::parse(kTable);
  const auto message = [&](std::vector<ChatMessage> messages) { return format->render(messages).status().to_string(); };
  EXPECT_THAT(message({}), HasSubstr("at least one message"));
  EXPECT_THAT(message({{"robot", ""}}),
              HasSubstr("does not allow a message of \"robot\" at the start; allowed roles: system, user"));
  EXPECT_THAT(message({{"user", ""}, {"user", ""}}),
              HasSubstr("does not allow a message of \"user\" after a message of \"user\""));
  EXPECT_THAT(message({{"user", ""}, {"assistant", ""}}),
              HasSubstr("does not allow a message of \"assistant\" before an answer"));
}

TEST(ChatFormat, an_unsupported_template_is_rejected_with_the_reason) {
  const auto format = ChatFormat::parse(
      R"({"format": "accord-chat-format", "format_version": 1, "unsupported": "it counts messages"})", "chat.json");
  EXPECT_EQ(format.status().to_string(),
            "unsupported: chat.json: the model's chat template cannot be expressed in this format: it counts messages");
}

}  // namespace
}  // namespace accord
