#pragma once
// UTF-8: characters of text that is well-formed, and what becomes of text that is not.

#include <cstddef>
#include <string>
#include <string_view>

namespace accord::tokenizer {

/// U+FFFD, which stands for bytes that are no character.
inline constexpr std::string_view kReplacement = "\xef\xbf\xbd";

/// The character at `at`, which moves behind it. REQUIRES: `text` is well-formed, at < text.size().
inline char32_t next_character(std::string_view text, std::size_t& at) {
  const auto byte = [&](std::size_t i) { return static_cast<char32_t>(static_cast<unsigned char>(text[i])); };
  const char32_t first = byte(at);
  if (first < 0x80) return at += 1, first;
  if (first < 0xe0) return at += 2, (first & 0x1f) << 6 | (byte(at - 1) & 0x3f);
  if (first < 0xf0) return at += 3, (first & 0xf) << 12 | (byte(at - 2) & 0x3f) << 6 | (byte(at - 1) & 0x3f);
  at += 4;
  return (first & 0x7) << 18 | (byte(at - 3) & 0x3f) << 12 | (byte(at - 2) & 0x3f) << 6 | (byte(at - 1) & 0x3f);
}

/// Whether a character begins at `at` or the text ends there.
inline bool is_boundary(std::string_view text, std::size_t at) {
  return at == text.size() || (static_cast<unsigned char>(text[at]) & 0xc0) != 0x80;
}

void append_character(char32_t character, std::string& text);

bool is_ascii(std::string_view text);
bool is_well_formed(std::string_view text);
/// `bytes` with U+FFFD for each maximal part of a character that is not whole, and for each byte that begins none.
std::string well_formed(std::string_view bytes);

}  // namespace accord::tokenizer
