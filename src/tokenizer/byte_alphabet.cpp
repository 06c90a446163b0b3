#include "tokenizer/byte_alphabet.hpp"

#include "tokenizer/utf8.hpp"

namespace accord::tokenizer {
namespace {

constexpr bool is_printable(int byte) {
  return (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
}

constexpr std::size_t kCharacters = 256 + 68;  // 68 bytes are not printable

constexpr auto kTables = [] {
  struct {
    std::array<char32_t, 256> characters = {};
    std::array<short, kCharacters> bytes = {};
  } tables;
  tables.bytes.fill(-1);
  char32_t next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    const auto i = static_cast<std::size_t>(byte);
    tables.characters[i] = is_printable(byte) ? static_cast<char32_t>(byte) : next++;
    tables.bytes[tables.characters[i]] = static_cast<short>(byte);
  }
  return tables;
}();

}  // namespace

const std::array<char32_t, 256>& byte_characters() { return kTables.characters; }

std::optional<unsigned char> byte_of(char32_t character) {
  if (character >= kCharacters || kTables.bytes[character] < 0) return std::nullopt;
  return static_cast<unsigned char>(kTables.bytes[character]);
}

std::string encode_bytes(std::string_view bytes) {
  std::string text;
  text.reserve(2 * bytes.size());
  for (const char byte : bytes) append_character(kTables.characters[static_cast<unsigned char>(byte)], text);
  return text;
}

std::optional<std::string> decode_bytes(std::string_view text) {
  std::string bytes;
  for (std::size_t at = 0; at < text.size();) {
    const auto byte = byte_of(next_character(text, at));
    if (!byte) return std::nullopt;
    bytes.push_back(static_cast<char>(*byte));
  }
  return bytes;
}

}  // namespace accord::tokenizer
