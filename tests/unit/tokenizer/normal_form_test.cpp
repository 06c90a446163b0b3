#include "tokenizer/normal_form.hpp"

#include <gtest/gtest.h>

namespace accord::tokenizer {
namespace {

// Examples of Unicode Standard Annex 15, figures 3 to 6.
TEST(NormalForm, the_examples_of_the_standard_hold) {
  const auto expect = [](std::string_view text, std::string_view nfd, std::string_view nfc, std::string_view nfkd,
                         std::string_view nfkc) {
    EXPECT_EQ(normal_form(text, NormalForm::kNfd), nfd);
    EXPECT_EQ(normal_form(text, NormalForm::kNfc), nfc);
    EXPECT_EQ(normal_form(text, NormalForm::kNfkd), nfkd);
    EXPECT_EQ(normal_form(text, NormalForm::kNfkc), nfkc);
  };
  expect("\u212b", "A\u030a", "\u00c5", "A\u030a", "\u00c5");
  expect("\u1e69", "s\u0323\u0307", "\u1e69", "s\u0323\u0307", "\u1e69");
  expect("\u1e0b\u0323", "d\u0323\u0307", "\u1e0d\u0307", "d\u0323\u0307", "\u1e0d\u0307");
  expect("x s\u0307\u0323!", "x s\u0323\u0307!", "x \u1e69!", "x s\u0323\u0307!", "x \u1e69!");
  expect("\ufb01 2\u2075", "\ufb01 2\u2075", "\ufb01 2\u2075", "fi 25", "fi 25");
  expect("\uac00", "\u1100\u1161", "\uac00", "\u1100\u1161", "\uac00");
}

TEST(NormalForm, many_marks_are_sorted_quickly) {
  std::string text = "a";
  for (int i = 0; i < 100'000; ++i) text += "\u0301\u0323";
  const std::string sorted = normal_form(text, NormalForm::kNfd);
  EXPECT_TRUE(sorted.starts_with("a\u0323\u0323"));
  EXPECT_TRUE(sorted.ends_with("\u0301\u0301"));
}

}  // namespace
}  // namespace accord::tokenizer
