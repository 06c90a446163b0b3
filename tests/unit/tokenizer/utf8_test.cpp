#include "tokenizer/utf8.hpp"

#include <gtest/gtest.h>

#include <string>

namespace accord::tokenizer {
namespace {

TEST(Utf8, characters_of_every_length_are_written_and_read_back) {
  for (const char32_t character : {0x0, 0x7f, 0x80, 0x7ff, 0x800, 0xd7ff, 0xe000, 0xffff, 0x10000, 0x10ffff}) {
    std::string text;
    append_character(character, text);
    EXPECT_TRUE(is_well_formed(text)) << std::hex << static_cast<unsigned>(character);
    std::size_t at = 0;
    EXPECT_EQ(next_character(text, at), character);
    EXPECT_EQ(at, text.size());
  }
}

// Tables 3-8 to 3-11 of the Unicode Standard, version 15.
TEST(Utf8, malformed_parts_are_replaced_as_the_standard_recommends) {
  const auto replaced = [](int count, std::string_view end) {
    std::string text;
    for (int i = 0; i < count; ++i) text += kReplacement;
    return text.append(end);
  };
  EXPECT_EQ(well_formed("\xc0\xaf\xe0\x80\xbf\xf0\x81\x82\x41"), replaced(8, "A"));  // overlong
  EXPECT_EQ(well_formed("\xed\xa0\x80\xed\xbf\xbf\xed\xaf\x41"), replaced(8, "A"));  // surrogates
  EXPECT_EQ(well_formed("\xf4\x91\x92\x93\xff\x41\x80\xbf\x42"), replaced(5, "A") + replaced(2, "B"));
  EXPECT_EQ(well_formed("\xe1\x80\xe2\xf0\x91\x92\xf1\xbf\x41"), replaced(4, "A"));  // cut short
}

TEST(Utf8, malformed_text_is_distinguished_from_valid_text) {
  for (const std::string text : {"", "plain ASCII of some length", "\xe2\x82\xac and \xf0\x9f\x98\x80"}) {
    EXPECT_TRUE(is_well_formed(text));
    EXPECT_EQ(well_formed(text), text);
    EXPECT_FALSE(is_well_formed(text + "\xe2\x82"));
  }
  EXPECT_TRUE(is_ascii("plain ASCII"));
  EXPECT_FALSE(is_ascii("plain ASCII, almost \xc3\xa9"));
}

}  // namespace
}  // namespace accord::tokenizer
