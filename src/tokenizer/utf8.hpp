#pragma once
// UTF-8: decoding of well-formed text, and repair of malformed text.

#include <cstddef>
#include <string>
#include <string_view>

namespace accord::tokenizer {

/// U+FFFD, which replaces bytes that are not a character.
inline constexpr std::string_view kReplacement = "\xef\xbf\xbd";

/// Returns the character at `at` and advances `at` past it. REQUIRES: `text` is well-formed, and at < text.size().
inline char32_t next_character(std::string_view text, std::size_t& at) {
  const auto byte = [&](std::size_t i) { return static_cast<char32_t>(static_cast<unsigned char>(text[i])); };
  const char32_t first = byte(at);
  if (first < 0x80) return at += 1, first;
  if (first < 0xe0) return at += 2, (first & 0x1f) << 6 | (byte(at - 1) & 0x3f);
  if (first < 0xf0) return at += 3, (first & 0xf) << 12 | (byte(at - 2) & 0x3f) << 6 | (byte(at - 1) & 0x3f);
  at += 4;
  return (first & 0x7) << 18 | (byte(at - 3) & 0x3f) << 12 | (byte(at - 2) & 0x3f) << 6 | (byte(at - 1) & 0x3f);
}

/// True if a character begins at `at`, or if the text ends there.
inline bool is_boundary(std::string_view text, std::size_t at) {
  return at == text.size() || (static_cast<unsigned char>(text[at]) & 0xc0) != 0x80;
}

void append_character(char32_t character, std::string& text);

bool is_ascii(std::string_view text);
bool is_well_formed(std::string_view text);
/// Returns `bytes` with U+FFFD in place of each maximal part of an incomplete character and of each byte that cannot
/// begin one.
std::string well_formed(std::string_view bytes);

}  // namespace accord::tokenizer
