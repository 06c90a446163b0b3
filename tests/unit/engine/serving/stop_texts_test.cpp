// Texts that end an answer are found however the answer is cut into pieces.
#include "engine/serving/stop_texts.hpp"

#include <gtest/gtest.h>

namespace accord::engine {
namespace {

// Returns the part of `text` that is passed on, pushed in pieces of `size`, and whether a stop text was found.
std::pair<std::string, bool> given(const std::string& text, std::vector<std::string> stops, std::size_t size) {
  StopTexts look(std::move(stops));
  std::string all;
  for (std::size_t at = 0; at < text.size() && !look.found(); at += size) all += look.push(text.substr(at, size));
  if (!look.found()) all += look.finish();
  return {all, look.found()};
}

TEST(StopTexts, are_found_in_pieces_of_any_size) {
  const std::string text = "aab aaab abc aabc";
  for (std::size_t size = 1; size <= text.size(); ++size) {
    EXPECT_EQ(given(text, {"aaab"}, size), std::pair(std::string("aab "), true)) << size;
    EXPECT_EQ(given(text, {"abd", "abc"}, size), std::pair(std::string("aab aaab "), true)) << size;
    EXPECT_EQ(given(text, {"aabcd", "x"}, size), std::pair(text, false)) << size;
    EXPECT_EQ(given(text, {}, size), std::pair(text, false)) << size;
  }
}

TEST(StopTexts, hold_back_only_text_that_may_begin_one) {
  StopTexts look({"END", "\n\n"});
  EXPECT_EQ(look.push("one E"), "one ");
  EXPECT_EQ(look.push("N"), "");
  EXPECT_EQ(look.push("E"), "EN");
  EXPECT_EQ(look.push("\n"), "E");
  EXPECT_EQ(look.finish(), "\n");
}

}  // namespace
}  // namespace accord::engine
