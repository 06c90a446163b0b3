// Malformed text is replaced as the Unicode standard recommends (section 3.9, "maximal subparts") and Rust does: the
// longest sequence of bytes that could begin a character becomes one U+FFFD.

#include "tokenizer/utf8.hpp"

#include <cstdint>
#include <cstring>

namespace accord::tokenizer {
namespace {

std::size_t ascii_prefix(std::string_view text) {
  std::size_t at = 0;
  for (std::uint64_t word = 0; at + 8 <= text.size(); at += 8) {
    std::memcpy(&word, text.data() + at, 8);
    if ((word & 0x8080808080808080) != 0) break;
  }
  while (at < text.size() && static_cast<unsigned char>(text[at]) < 0x80) ++at;
  return at;
}

struct Sequence {
  std::size_t bytes;
  bool is_whole;
};

// Returns the character at the front of `text`, or the longest part of one.
Sequence front_of(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(0);
  if (first < 0x80) return {1, true};
  if (first < 0xc2 || first > 0xf4) return {1, false};
  const std::size_t length = first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
  // The range of the second byte excludes overlong forms, surrogates and values above U+10FFFF.
  const unsigned char lowest = first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : 0x80;
  const unsigned char highest = first == 0xed ? 0x9f : first == 0xf4 ? 0x8f : 0xbf;
  if (text.size() < 2 || byte(1) < lowest || byte(1) > highest) return {1, false};
  for (std::size_t i = 2; i < length; ++i) {
    if (i == text.size() || (byte(i) & 0xc0) != 0x80) return {i, false};
  }
  return {length, true};
}

}  // namespace

void append_character(char32_t character, std::string& text) {
  const auto push = [&](char32_t byte) { text.push_back(static_cast<char>(byte)); };
  if (character < 0x80) return push(character);
  if (character < 0x800) {
    push(0xc0 | character >> 6);
  } else {
    if (character < 0x10000) {
      push(0xe0 | character >> 12);
    } else {
      push(0xf0 | character >> 18);
      push(0x80 | (character >> 12 & 0x3f));
    }
    push(0x80 | (character >> 6 & 0x3f));
  }
  push(0x80 | (character & 0x3f));
}

bool is_ascii(std::string_view text) { return ascii_prefix(text) == text.size(); }

bool is_well_formed(std::string_view text) {
  for (;;) {
    text.remove_prefix(ascii_prefix(text));
    if (text.empty()) return true;
    const Sequence front = front_of(text);
    if (!front.is_whole) return false;
    text.remove_prefix(front.bytes);
  }
}

std::string well_formed(std::string_view bytes) {
  std::string text;
  text.reserve(bytes.size());
  while (!bytes.empty()) {
    const Sequence front = front_of(bytes);
    text += front.is_whole ? bytes.substr(0, front.bytes) : kReplacement;
    bytes.remove_prefix(front.bytes);
  }
  return text;
}

}  // namespace accord::tokenizer
